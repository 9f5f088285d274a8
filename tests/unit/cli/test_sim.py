"""The simulator's verb: what it writes and what it prints. What it computes is the simulator's own business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_node.cli.sim import ROUNDS, facts
from pfl_node.sim.outcome import NodeRecord, Summary
from tests.unit.cli.run_command import Shell


def test_a_simulation_writes_its_journal_and_prints_its_summary(shell: Shell, tmp_path: Path) -> None:
    words = "sim --nodes 2 --policy local --rounds 1 --seed 3 --set train.steps=1 --format json --out"
    outcome = shell(*words.split(), str(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    printed = json.loads(outcome.out)
    assert (printed["policy"], printed["nodes"], printed["rounds"], printed["seed"]) == ("local", 2, 1, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text())["accuracy"] == printed["accuracy"]


def test_without_rounds_a_simulation_still_ends(shell: Shell) -> None:
    words = "sim --nodes 1 --policy local --set train.steps=1 --format json"
    assert json.loads(shell(*words.split()).out)["rounds"] == ROUNDS


def test_a_summary_for_people_leaves_out_what_the_policy_does_not_have() -> None:
    nodes = tuple(NodeRecord(f"n{i}", cluster=i % 2, accuracy=0.5 + i / 10, bytes_sent=10**6) for i in range(2))
    summary = Summary("local", "digits", 0, 5, nodes, {}, 0, 12.0, 1.0, 1.0)
    assert facts(summary) == {
        "run": "local on digits, 2 nodes, 5 rounds, seed 0",
        "accuracy": "55.0%",
        "  cluster 0": "50.0%",
        "  cluster 1": "60.0%",
        "sent": "0 models, 2.0 MB; 0 lost",
        "time": "12.0 s simulated in 1.0 s",
    }


@pytest.mark.parametrize(("neighbours", "head", "key"), [(("n1",), None, "neighbours"), (None, 1, "settled")])
def test_a_summary_for_people_tells_who_found_whom(
    neighbours: tuple[str, ...] | None, head: int | None, key: str
) -> None:
    nodes = tuple(NodeRecord(f"n{i}", cluster=i, neighbours=neighbours, head=head) for i in range(2))
    assert key in facts(Summary("x", "digits", 0, 5, nodes, {"flood": 2}, 0, 12.0, 1.0, 1.0))


def test_a_summary_for_people_tells_who_was_malicious_and_what_the_guard_did() -> None:
    honest, bad = NodeRecord("n0", accuracy=0.5, kept_out=3, quarantined=("n1",)), NodeRecord("n1", honest=False)
    told = facts(Summary("el", "digits", 0, 5, (honest, bad), {}, 0, 12.0, 1.0, 1.0), ("sign_flip", "alie"))
    assert told["malicious"] == "n1 (sign_flip, alie); accuracy and neighbours are those of the others"
    assert told["kept out"].endswith("quarantine: precision 100.0%, recall 100.0%")


def test_an_attack_by_nobody_is_told() -> None:
    nodes = (NodeRecord("n0", accuracy=0.5), NodeRecord("n1", accuracy=0.5))
    told = facts(Summary("el", "digits", 0, 5, nodes, {}, 0, 12.0, 1.0, 1.0), ("sign_flip",))
    assert told["malicious"] == "none: attack.share of 2 nodes is less than one node"
