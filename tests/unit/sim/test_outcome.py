"""The outcome of a run as measures and as summary.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pfl_node.sim.outcome import NodeRecord, Outcome, Summary, divergence, misfits, refusals
from pfl_node.steps import Train
from pfl_node.swarm.swarm_outcome import SwarmOutcome
from tests.toy import constant
from tests.unit.sim.toy_swarms import A, Together, ran

NODES = (
    NodeRecord("a", cluster=0, accuracy=0.8, loss=0.5, models_sent=3, bytes_sent=30, neighbours=("b",)),
    NodeRecord("b", cluster=0, accuracy=0.6, loss=0.7, models_sent=4, bytes_sent=40, neighbours=("a", "c")),
    NodeRecord("c", cluster=1, accuracy=0.9, loss=0.3, neighbours=("a",)),
)


def outcome(*nodes: NodeRecord) -> Outcome:
    return Outcome("pens", "digits", 7, 5, nodes, {"stale_round": 2, "flood": 1})


def test_the_figures_follow_from_the_nodes() -> None:
    o = outcome(*NODES)
    assert o.accuracy == pytest.approx(2.3 / 3)
    assert o.loss == pytest.approx(0.5)
    assert o.by_cluster == {0: pytest.approx(0.7), 1: 0.9}
    assert (o.models_sent, o.bytes_sent) == (7, 70)
    assert o.neighbour_precision is not None
    assert o.neighbour_precision.precision == pytest.approx((1 + 0.5 + 0) / 3)


def test_the_summary_leaves_out_what_the_policy_does_not_have() -> None:
    chose, shared = outcome(*NODES).as_dict(), outcome(NodeRecord("a", cluster=0, head=1)).as_dict()
    assert "neighbours" in chose
    assert not {"heads_by_cluster", "settled"} & set(chose)
    assert "neighbours" not in shared
    assert shared["heads_by_cluster"] == {"0": {"1": 1}}
    assert shared["settled"] is True


def test_a_loss_that_is_no_number_is_written_as_null(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    outcome(NodeRecord("a", accuracy=float("nan"), loss=float("inf"))).write(file)
    written = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert written["per_node"][0]["loss"] is None
    assert written["accuracy"] is None
    assert written["refused"] == {"flood": 1, "stale_round": 2}


def test_simulated_and_real_nodes_have_the_same_summary_and_each_its_own_extras() -> None:
    run: dict[str, Any] = {"policy": "pens", "task": "digits", "seed": 0, "rounds": 5}
    run |= {"nodes": NODES, "refused": {}, "wall_seconds": 1.0, "cpu_seconds": 1.0}
    simulated = Summary(**run, models_lost=1, virtual_seconds=9.0)
    real = SwarmOutcome(**run, failed_calls={"send gone": 1})
    own = {"models_lost", "virtual_seconds", "failed_calls", "processes"}
    assert set(simulated.as_dict()) ^ set(real.as_dict()) == own
    shared = set(simulated.as_dict()) & set(real.as_dict())
    assert {k: simulated.as_dict()[k] for k in shared} == {k: real.as_dict()[k] for k in shared}
    assert simulated.as_dict()["per_node"][0]["neighbours"] == list(asdict(NODES[0])["neighbours"])


def test_refusals_are_counted_over_the_runs_and_say_why() -> None:
    said = refusals({"flood": 2, "garbage": 1}, {"flood": 1000})
    assert said == (
        "1,003 messages were refused without any injected fault: "
        "1,002 flood (the receiver's inbox was full), 1 garbage"
    )
    assert refusals({}, {}) == ""


def test_a_layout_that_does_not_fit_is_named_also_in_a_run_with_faults() -> None:
    assert misfits({"flood": 2}) == ""
    assert misfits({"flood": 2, "layout": 3}).startswith("3 messages were refused as layout (another layout")


def test_nodes_that_discarded_a_training_are_counted(tmp_path: Path) -> None:
    class Diverges(Together):
        async def main(self) -> None:
            if self.me == A:
                await Train(constant(float("nan")))
            await super().main()

    nodes = ran(tmp_path, Diverges, nodes=3, rounds=1).swarm.records()
    assert [n.diverged for n in nodes] == [0, None, None]
    assert ["diverged" in n.as_dict() for n in nodes] == [True, False, False]
    said = divergence(n.diverged for n in nodes)
    assert said.startswith("1 of 3 nodes discarded a training or gradient that was not finite: lower train.lr")
    assert divergence([None]) == ""
