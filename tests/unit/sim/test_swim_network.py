"""Simulations in which the real SWIM says who is alive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfl_node.policies import POLICIES
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.sim.faults import Crash, Fault, Join, Loss, Partition, Restart, node_ids
from pfl_node.sim.simulate import simulate
from pfl_node.testing.contract.toy_learner import two_clusters
from tests.golden.runs import of
from tests.unit.sim.toy_swarms import EVEN, A, B, C, Ran, Together, ran

SWIM = Settings.model_validate({"sim": {"membership": "swim"}})


def together(folder: Path, *faults: Fault, nodes: int = 4, rounds: int = 12) -> Ran:
    """A round takes a second."""
    slow = replace(EVEN, batch=0.5)
    return ran(folder, Together, nodes=nodes, rounds=rounds, faults=faults, settings=SWIM, costs=slow)


def got(run: Ran, node: str) -> list[list[str]]:
    return [row["got"] for row in run.of("round") if row["node"] == node]


def test_where_nothing_happens_all_hear_from_all(tmp_path: Path) -> None:
    run = together(tmp_path, nodes=3)
    assert got(run, A) == [[B, C]] * 12
    assert run.swarm.refused() == {}


def test_what_is_learnt_in_lockstep_does_not_depend_on_the_membership(tmp_path: Path) -> None:
    def learnt(membership: str) -> list[Any]:
        settings = load_settings(overrides={**of("el"), "rounds": 5, "sim.membership": membership})
        return [n.accuracy for n in simulate(settings, nodes=8, load=two_clusters).nodes]

    assert learnt("swim") == learnt("detector")


def test_a_crash_is_noticed_and_a_restart_is_welcome(tmp_path: Path) -> None:
    run = together(tmp_path, Crash(1.05, C), Restart(20.0, C), rounds=60)
    rows = run.of("round", A)
    assert [C not in row["sent"] for row in rows if 12.0 < row["time"] < 19.0] == [True] * sum(
        12.0 < row["time"] < 19.0 for row in rows
    )
    assert any(C in row["got"] for row in rows if row["time"] > 21.0)
    assert {row["node"] for row in run.of("finished")} == set(node_ids(4))


def test_a_node_that_joins_later_takes_part(tmp_path: Path) -> None:
    run = together(tmp_path, Join(2.0, C), rounds=40)
    assert got(run, C)
    assert any(C in senders for senders in got(run, A))


def test_a_partition_that_heals_is_forgotten(tmp_path: Path) -> None:
    run = together(tmp_path, Partition(1.0, (frozenset({A}),), 25.0), rounds=80)
    assert any(B in senders for senders in got(run, A)[-5:])


def test_losses_alone_kill_nobody(tmp_path: Path) -> None:
    run = together(tmp_path, Loss(0.1), nodes=8, rounds=30)
    members = [node.swim.members_of_run for node in run.swarm.world.nodes.values() if node.swim]
    assert len(members) == 8
    assert {row["node"] for row in run.of("finished")} == set(node_ids(8))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_works_and_the_same_seed_gives_the_same_journal(policy: str, tmp_path: Path) -> None:
    texts = []
    for turn in ("one", "two"):
        settings = load_settings(overrides={**of(policy), "rounds": 3, "seed": 5, "sim.membership": "swim"})
        faults: list[Fault] = [Crash(1.0, B), Restart(6.0, B), Loss(0.05)]
        summary = simulate(settings, nodes=5, faults=faults, out=tmp_path / turn, load=two_clusters)
        assert {node.state for node in summary.nodes} == {"left"}
        texts.append((tmp_path / turn / "journal.jsonl").read_bytes())
    assert texts[0] == texts[1]
