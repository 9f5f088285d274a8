"""The report: what a newcomer reads in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfl_node.sim.outcome import NodeRecord
from pfl_node.swarm.baseline import LocalRun
from pfl_node.swarm.swarm_report import INTERRUPTED, SwarmReport, show_next
from tests.unit.swarm.made_swarms import outcome, paper, record, text

KINDS = {0: "upright", 1: "upside down"}
PENS = (
    record(0, 0, accuracy=0.92, neighbours=("node-001",), models_sent=5, bytes_sent=600_000),
    record(1, 0, accuracy=0.88, neighbours=("node-000", "node-002"), models_sent=5, bytes_sent=600_000),
    record(2, 1, accuracy=0.80, neighbours=("node-003",), models_sent=5, bytes_sent=600_000),
    record(3, 1, accuracy=0.84, neighbours=("node-002",), models_sent=5, bytes_sent=600_000),
)
ALONE = LocalRun(0.80, 1.0, {0: 0.85, 1: 0.83})


def shown(report: SwarmReport, **how: Any) -> str:
    console = paper()
    report.show(console, **how)
    return text(console)


def test_the_whole_report_of_a_policy_that_chooses_neighbours() -> None:
    assert (
        shown(SwarmReport(outcome(*PENS), ALONE, KINDS))
        == """\
pens on digits: 4 nodes, 10 rounds, 12 s
By learning with others, the mean test accuracy rose from 80.0 % to 86.0 %.

test accuracy  nodes   alone  with pens
upright            2  85.0 %     90.0 %  +5.0
upside down        2  83.0 %     82.0 %  -1.0
all                4  80.0 %     86.0 %  +6.0

neighbours of each node: + the same kind of data, x another kind
                      00  01  02  03
node-000 upright       o   +   .   .
node-001 upright       +   o   x   .
node-002 upside down   .   .   o   +
node-003 upside down   .   .   +   o

87.5 % of the chosen neighbours have the same kind of data (precision); 100.0 % of those with the
same kind were chosen (recall).
20 models were sent over gRPC, 2.4 MB. No sample left its node."""
    )


def test_a_policy_with_heads_tells_who_shares_one() -> None:
    nodes = [record(i, i // 2, head=1 - i // 2, models_sent=1, bytes_sent=5000) for i in range(4)]
    told = shown(SwarmReport(outcome(*nodes, policy="facade"), kinds=KINDS))
    assert "  upright: 2 on head 1\n  upside down: 2 on head 0\n" in told
    assert "Each kind of data has settled on a head of its own." in told
    assert "4 models were sent over gRPC, 20 kB." in told
    mixed = shown(SwarmReport(outcome(record(0, 0, head=0), record(1, 0, head=1), record(2, 1, head=0))))
    assert "cluster 0: 1 on head 0, 1 on head 1" in mixed
    assert "not settled" in mixed


def test_alone_there_is_nothing_to_compare_and_nothing_was_sent() -> None:
    told = shown(SwarmReport(outcome(record(0), record(1, 1), policy="local"), kinds=KINDS))
    assert "test accuracy  nodes   alone\n" in told
    assert "Learning with others" not in told
    assert "No model was sent." in told


def test_without_clusters_there_is_one_line() -> None:
    told = shown(SwarmReport(outcome(*(record(i, None, models_sent=1) for i in range(3)))))
    assert "all                3     90.0 %" in told
    assert "cluster" not in told


def test_who_chose_whom_is_drawn_without_clusters_too() -> None:
    nodes = (record(0, None, neighbours=("node-001",)), record(1, None, neighbours=()))
    told = shown(SwarmReport(outcome(*nodes)))
    assert "neighbours of each node: + chosen" in told
    assert "x" not in told.partition("who learns with whom")[2].partition("\n\n")[0]
    assert "precision" not in told


def test_one_cluster_is_not_listed_twice() -> None:
    told = shown(SwarmReport(outcome(record(0), record(1)), kinds=KINDS))
    assert "upright" not in told
    assert "all                2     90.0 %" in told


def test_a_task_without_accuracy_is_told_by_its_loss() -> None:
    nodes = [record(i, None, accuracy=None, loss=0.25) for i in range(2)]
    told = shown(SwarmReport(outcome(*nodes), LocalRun(None, 0.5, {})))
    assert "test loss  nodes  alone  with pens" in told
    assert "all            2    0.5       0.25" in told
    assert "accuracy" not in told


def test_a_worse_or_equal_result_is_not_called_a_rise() -> None:
    better = LocalRun(0.95, 1.0, {})
    assert "fell from 95.0 % to 90.0 %" in shown(SwarmReport(outcome(record(0), record(1)), better))
    same = LocalRun(0.9, 1.0, {})
    assert "stayed at 90.0 %" in shown(SwarmReport(outcome(record(0), record(1)), same))


def test_a_big_swarm_has_no_picture_but_its_figures() -> None:
    nodes = [record(i, i % 2, neighbours=(f"node-{(i + 2) % 30:03d}",)) for i in range(30)]
    told = shown(SwarmReport(outcome(*nodes)))
    assert "who learns with whom" not in told
    assert "100.0 % of the chosen neighbours" in told


def test_the_picture_of_the_most_nodes_fits_100_columns() -> None:
    nodes = [record(i, 1, neighbours=("node-000",)) for i in range(24)]
    assert max(map(len, shown(SwarmReport(outcome(*nodes), kinds={1: "turned right"})).splitlines())) <= 100


def test_what_was_refused_is_told_to_who_wants_details() -> None:
    report = SwarmReport(outcome(record(0, models_sent=1), refused={"flood": 2}))
    assert "flood" not in shown(report)
    assert "Refused: flood 2" in shown(report, details=True)


def test_notes_come_along() -> None:
    assert "There is no comparison: why" in shown(
        SwarmReport(outcome(record(0)), notes=["There is no comparison: why"])
    )


# -- before the end --------------------------------------------------------------------------------------------


def test_a_stopped_run_tells_how_far_it_came() -> None:
    nodes = (record(0, rounds=3, state="stopped"), record(1, rounds=5, state="lost"))
    report = SwarmReport(outcome(*nodes), stopped=True)
    assert shown(report).startswith("pens on digits: 2 nodes, stopped after 3 to 5 rounds of 10, 12 s\n")
    assert "1 of 2 nodes did not finish." in shown(report)
    assert report.code == 0
    endless = SwarmReport(outcome(record(0, rounds=1), rounds=None), stopped=True)
    assert shown(endless).startswith("pens on digits: 1 node, stopped after 1 round, 12 s\n")


def test_a_final_exchange_is_not_counted_as_a_round() -> None:
    assert "10 rounds" in shown(SwarmReport(outcome(record(0, rounds=11), record(1, rounds=11))))


def test_when_there_is_nothing_to_report_it_says_so(tmp_path: Path) -> None:
    early = SwarmReport(outcome(NodeRecord("node-000", state="lost")), stopped=True)
    assert shown(early) == "stopped before any node finished a round"
    assert early.code == INTERRUPTED
    early.write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    killed = SwarmReport(outcome(record(0)), stopped=True, killed=True)
    assert shown(killed) == "killed"
    assert killed.code == INTERRUPTED


# -- the file and the rest -------------------------------------------------------------------------------------


def test_the_summary_holds_the_comparison(tmp_path: Path) -> None:
    SwarmReport(outcome(*PENS), ALONE).write(tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    clusters = {"0": 0.85, "1": 0.83}
    assert written["alone"] == {"accuracy": 0.8, "loss": 1.0, "accuracy_by_cluster": clusters, "metrics": {}}
    assert written["accuracy_by_cluster"]["1"] == pytest.approx(0.82)


def test_the_next_steps_are_a_list() -> None:
    console = paper()
    show_next({"pfl-node demo --policy facade": "heads", "docs/x.md": "more"}, console)
    assert (
        text(console) == "\nnext:\n  pfl-node demo --policy facade   heads\n  docs/x.md                       more"
    )


def test_who_was_malicious_is_told() -> None:
    nodes = (record(0, accuracy=0.9), record(1, accuracy=0.1, honest=False))
    told = shown(SwarmReport(outcome(*nodes)))
    assert "Malicious: node-001; accuracies are those of the others." in told
