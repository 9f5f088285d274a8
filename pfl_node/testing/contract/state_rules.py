"""What must hold however a policy is answered, and what a checkpoint must bring back. Knows no simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pfl_node.policies.base import Policy
from pfl_node.sim.event_journal import exact
from pfl_node.steps import Report
from pfl_node.store.policy_state import freeze
from pfl_node.testing.contract.harness import HINT, ROUNDS, Broken, PolicyUnderTest, through_disk
from pfl_node.testing.contract.hostile import ME, Hostile
from pfl_node.testing.contract.toy_learner import ToyLearner

TRIES = range(3)  # seeds
MOODS = {"nobody": (0.0, 0.0), "silent": (0.3, 0.0), "some": (0.4, 0.5), "others": (0.2, 1.0), "all": (1.0, 1.0)}


def policy_of(subject: PolicyUnderTest, seed: int) -> Policy:
    """A new one, outside any swarm."""
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


def played(
    subject: PolicyUnderTest,
    mood: str,
    seed: int,
    state: Mapping[str, Any] | None = None,
    *,
    calm_after: int | None = None,
) -> Hostile:
    """A whole run by hand, from the beginning or from a snapshot."""
    policy = policy_of(subject, seed)
    if state:
        policy.restore(state)
    there, answers = MOODS[mood]
    hostile = Hostile(policy, Random(f"{mood}/{seed}"), there=there, answers=answers)
    if calm_after is not None:
        hostile.calm_after = calm_after
        if policy.round > calm_after:
            hostile.fall_silent()
    hostile.run()
    hostile.check()
    return hostile


# -- rules -----------------------------------------------------------------------------------------------------


def answers_may_be_anything(subject: PolicyUnderTest, mood: str) -> None:
    for seed in TRIES:
        hostile = played(subject, mood, seed)
        if set(range(ROUNDS)) - set(hostile.reported) and not hostile.stopped:
            raise Broken(f"of {ROUNDS} rounds it reported {hostile.reported}")


def the_state_survives_a_checkpoint(subject: PolicyUnderTest) -> None:
    """Every snapshot comes back from the disk as it was, and so does a policy that is restored from it."""
    for seed in TRIES:
        snapshots = played(subject, "some", seed).snapshots
        for snapshot, found in zip(snapshots, all_through_disk(snapshots), strict=True):
            if difference := differs(snapshot, found):
                raise Broken(f"what it keeps comes back from a checkpoint as something else: {difference}")
            restored = policy_of(subject, seed + 1)
            restored.restore(found)
            if difference := differs(snapshot | {"round": snapshot["round"] + 1}, restored.snapshot()):
                raise Broken(f"restored from a checkpoint it is not what it was: {difference}")


def a_snapshot_does_not_change_afterwards(subject: PolicyUnderTest) -> None:
    class Watched(subject.policy):  # type: ignore[name-defined, misc]
        def snapshot(self) -> dict[str, Any]:
            found: dict[str, Any] = super().snapshot()
            taken.append((found, text(found)))
            return found

    for seed in TRIES:
        taken: list[tuple[dict[str, Any], str]] = []
        played(subject.like(Watched), "some", seed)
        for found, was in taken:
            if text(found) != was:
                raise Broken(f"the snapshot of round {found['round']} changed when the policy went on")


def a_restored_policy_goes_on(subject: PolicyUnderTest) -> None:
    """From each of its snapshots, among the same and among other peers."""
    for snapshot in all_through_disk(played(subject, "some", 0).snapshots):
        for mood in ("nobody", "some"):
            played(subject, mood, 0, snapshot)


def a_restored_policy_does_what_it_would_have_done(subject: PolicyUnderTest) -> None:
    """The peers fall silent after the checkpoint, so that only its own state decides. Not for handlers: what they
    do depends on when they are called."""
    if subject.policy.pushes():
        return
    wholes = [played(subject, "some", 0, calm_after=round) for round in range(ROUNDS - 1)]
    wholes = [whole for whole in wholes if whole.calm_after in whole.reported]  # one may have stopped before
    places = [whole.reported.index(round) for round, whole in enumerate(wholes)]
    states = all_through_disk([whole.snapshots[place] for whole, place in zip(wholes, places, strict=True)])
    for round, (whole, place, state) in enumerate(zip(wholes, places, states, strict=True)):
        again = played(subject, "some", 0, state, calm_after=round)
        if [_told(r) for r in again.reports] != [_told(r) for r in whole.reports[place + 1 :]]:
            raise Broken(f"restored after round {round} it goes on otherwise than it would have: {HINT}")


def _told(report: Report) -> tuple[Any, ...]:
    return report.round, report.model.vector.tobytes(), exact(report.data), report.tag, dict(report.notes)


# -- states ---- ------------------------------------------------------------------------------------------


def all_through_disk(snapshots: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In one file, as every file is a wait for the disk."""
    found: list[dict[str, Any]] = through_disk({"all": list(snapshots)})["all"]
    return found


def differs(one: Any, other: Any, where: str = "") -> str | None:
    """Where two states are not the same in value and type; None: nowhere."""
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
