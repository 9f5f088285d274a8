"""Rules about answers and state: whatever the answers, and across checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pfl_node.policies.base import Policy
from pfl_node.sim.event_journal import exact
from pfl_node.steps import Report, Send
from pfl_node.store.policy_state import freeze
from pfl_node.testing.contract.harness import HINT, ROUNDS, Broken, PolicyUnderTest, through_disk
from pfl_node.testing.contract.hostile import ME, Hostile
from pfl_node.testing.contract.toy_learner import ToyLearner

TRIES = range(3)  # seeds
ENVIRONMENTS = {
    "nobody": (0.0, 0.0),
    "silent": (0.3, 0.0),
    "some": (0.4, 0.5),
    "others": (0.2, 1.0),
    "all": (1.0, 1.0),
}


def policy_of(subject: PolicyUnderTest, seed: int) -> Policy:
    return subject.policy(
        me=ME,
        cfg=subject.cfg,
        model=ToyLearner().fresh(seed),
        rounds=ROUNDS,
        seed=seed,
        rng=Random(seed),
        samples=ToyLearner.samples,
        truth=0 if subject.policy.oracular else None,
    )


def play(
    subject: PolicyUnderTest,
    environment: str,
    seed: int,
    state: Mapping[str, Any] | None = None,
    *,
    silent_after: int | None = None,
) -> Hostile:
    """Run the policy with a hostile driver, from the beginning or from a snapshot."""
    policy = policy_of(subject, seed)
    if state:
        policy.restore(state)
    present, answers = ENVIRONMENTS[environment]
    hostile = Hostile(policy, Random(f"{environment}/{seed}"), present=present, answers=answers)
    if silent_after is not None:
        hostile.silent_after = silent_after
        if policy.round > silent_after:
            hostile.silence()
    hostile.run()
    hostile.check()
    return hostile


# -- rules -----------------------------------------------------------------------------------------------------


def answers_may_be_anything(subject: PolicyUnderTest, environment: str) -> None:
    for seed in TRIES:
        hostile = play(subject, environment, seed)
        if set(range(ROUNDS)) - set(hostile.reported) and not hostile.stopped:
            raise Broken(f"of {ROUNDS} rounds it reported {hostile.reported}")


def the_state_survives_a_checkpoint(subject: PolicyUnderTest) -> None:
    """A checkpoint reproduces every snapshot, and a policy restored from it has the same state."""
    for seed in TRIES:
        snapshots = play(subject, "some", seed).snapshots
        for snapshot, found in zip(snapshots, all_through_disk(snapshots), strict=True):
            if difference := differs(snapshot, found):
                raise Broken(f"a checkpoint changes its state: {difference}")
            restored = policy_of(subject, seed + 1)
            restored.restore(found)
            if difference := differs(snapshot | {"round": snapshot["round"] + 1}, restored.snapshot()):
                raise Broken(f"its state differs after a restore: {difference}")


def a_snapshot_does_not_change_afterwards(subject: PolicyUnderTest) -> None:
    class Recording(subject.policy):  # type: ignore[name-defined, misc]
        def snapshot(self) -> dict[str, Any]:
            found: dict[str, Any] = super().snapshot()
            taken.append((found, text(found)))
            return found

    for seed in TRIES:
        taken: list[tuple[dict[str, Any], str]] = []
        play(subject.like(Recording), "some", seed)
        for found, was in taken:
            if text(found) != was:
                raise Broken(f"the snapshot of round {found['round']} changed after it was taken")


def a_restored_policy_goes_on(subject: PolicyUnderTest) -> None:
    """From each of its snapshots, with and without peers."""
    for snapshot in all_through_disk(play(subject, "some", 0).snapshots):
        for environment in ("nobody", "some"):
            play(subject, environment, 0, snapshot)


def a_restored_policy_does_what_it_would_have_done(subject: PolicyUnderTest) -> None:
    """Peers are silent after the checkpoint, so that only the state matters. Skips policies with handlers, whose
    behaviour depends on when they are called."""
    if subject.policy.pushes():
        return
    wholes = [play(subject, "some", 0, silent_after=round) for round in range(ROUNDS - 1)]
    wholes = [whole for whole in wholes if whole.silent_after in whole.reported]  # it may have stopped early
    indices = [whole.reported.index(round) for round, whole in enumerate(wholes)]
    states = all_through_disk([whole.snapshots[i] for whole, i in zip(wholes, indices, strict=True)])
    for round, (whole, index, state) in enumerate(zip(wholes, indices, states, strict=True)):
        again = play(subject, "some", 0, state, silent_after=round)
        before = whole.said.index(whole.reports[index]) + 1
        if [_content(step) for step in again.said] != [_content(step) for step in whole.said[before:]]:
            raise Broken(f"restored after round {round} it behaves differently: {HINT}")


def _content(step: Send | Report) -> tuple[Any, ...]:
    numbers = {name: model.numbers.tobytes() for name, model in {"": step.model, **step.vectors}.items()}
    more = exact(step.data) if isinstance(step, Report) else (tuple(step.to), step.model.layout.part)
    return step.round, numbers, step.tag, dict(step.notes), more


# -- comparing states ------------------------------------------------------------------------------------------


def all_through_disk(snapshots: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In one file, because every file waits for an fsync."""
    found: list[dict[str, Any]] = through_disk({"all": list(snapshots)})["all"]
    return found


def differs(one: Any, other: Any, where: str = "") -> str | None:
    """The first place where two states differ in value or type; None: they are equal."""
    if type(one) is not type(other):
        return f"{where}: a {type(one).__name__} became a {type(other).__name__}"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where}: {list(one)} became {list(other)}"
        pairs = [(one[key], other[key], f"{where}.{key}") for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where}: {one} became {other}"
        pairs = [(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other or (one != one and other != other) else f"{where}: {one} became {other}"
    return next((found for a, b, at in pairs if (found := differs(a, b, at))), None)


def text(state: Mapping[str, Any]) -> str:
    frozen, vectors = freeze(dict(state))
    return json.dumps([frozen, {name: vector.tolist() for name, vector in vectors.items()}])
