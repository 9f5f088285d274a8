"""Which noise the nodes of a simulated swarm share, in rounds without and with faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pfl_node.policies.base import Policy
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Near
from pfl_node.settings import Settings
from pfl_node.sim.faults import Crash, Fault, Restart
from pfl_node.steps import Report, Train
from tests.toy import ToyLearner
from tests.unit.sim.toy_swarms import A, B, Ran, ran

PRIVATE = Settings.model_validate({"privacy": {"dp": True, "dp_correlated": True}})


def seeds(run: Ran) -> dict[str, list[list[tuple[int, str]]]]:
    """By node, the pairs of each training."""
    found: dict[str, list[list[tuple[int, str]]]] = {}
    for id, process in run.swarm.world.nodes.items():
        learner = process.learner
        assert isinstance(learner, ToyLearner)
        found[id] = [list(options["partners"][0]) for options in learner.trained]
    return found


def swarm(folder: Path, policy: type[Policy] = Dpsgd, *, nodes: int = 6, faults: tuple[Fault, ...] = ()) -> Ran:
    settings = PRIVATE.model_copy(update={"store": PRIVATE.store.model_copy(update={"checkpoint_every": 4})})
    return ran(folder, policy, nodes=nodes, rounds=8, settings=settings, options=[("degree", 3)], faults=faults)


@pytest.mark.parametrize("policy", [Dpsgd, El])
def test_in_each_round_every_node_shares_its_noise_with_its_neighbours_and_all_of_it_cancels(
    tmp_path: Path, policy: type[Policy]
) -> None:
    found = seeds(swarm(tmp_path, policy))
    signs: Counter[str] = Counter()
    uses: Counter[str] = Counter()
    for trainings in found.values():
        assert [len(pairs) for pairs in trainings] == [3] * 8
        for sign, seed in (pair for pairs in trainings for pair in pairs):
            signs[seed] += sign
            uses[seed] += 1
    assert set(signs.values()) == {0}
    assert set(uses.values()) == {2}
    assert len(uses) == 8 * 6 * 3 / 2


def test_a_node_that_repeats_rounds_after_a_crash_adds_other_noise(tmp_path: Path) -> None:
    when = swarm(tmp_path).seconds * 0.7
    run = swarm(tmp_path, faults=(Crash(when, A), Restart(when + 0.01, A)))
    assert [row["round"] for row in run.of("restarted", A)] == [4]  # the checkpoint is older than its last round
    trainings = seeds(run)[A]
    used = [seed for pairs in trainings for _, seed in pairs]
    rounds = [int(seed.rpartition("/")[2]) for seed in used]
    assert len(set(rounds)) < len(trainings), "it repeated a round"
    assert len(used) == len(set(used))


class Twice(Dpsgd):
    async def mix(self, t: int, near: Near) -> None:
        self.model = await Train(self.model, partners=near.to)
        await Report(t, self.model)


def test_a_second_training_in_a_round_has_no_noise_of_pairs(tmp_path: Path) -> None:
    """The same noise in two messages would reveal their difference."""
    trainings = seeds(swarm(tmp_path, Twice))[B]
    assert [len(pairs) for pairs in trainings] == [3, 0] * 8


def test_without_the_setting_nothing_of_it_reaches_the_learner(tmp_path: Path) -> None:
    run = ran(tmp_path, Dpsgd, nodes=3)
    learner: Any = run.node(A).learner
    assert all("partners" not in options for options in learner.trained)
