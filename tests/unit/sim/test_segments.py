"""A run in segments that is interrupted resumes and ends with the same results."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import PflError
from pfl_node.lab.resumption import segment_of
from pfl_node.lab.spec import load
from pfl_node.policies import POLICIES
from pfl_node.settings import Settings
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.sim.snapshot import may_be_held
from tests.unit.sim.toy_swarms import toy

NODES, ROUNDS, EVERY = 6, 7, 3
KNOBS: dict[str, dict[str, Any]] = {
    "gossip": {"n_peers": 2, "quiet": 2.0},
    "pens": {"n_sampled": 3, "m": 1, "T": 2, "n_peers": 2, "quiet": 2.0},
    "pens_pull": {"selection_rounds": 2},
    "facade": {"warmup": 2},
    "idca": {"warmup": 2},
}


class Cut(Exception):
    """A simulated power failure."""


def run(policy: str, out: Path, *, cut_after: int | None = None, rounds: int = ROUNDS, seed: int = 0) -> Summary:
    knobs = KNOBS.get(policy, {})
    told = {"policy": {"name": policy, **knobs}, "rounds": rounds, "seed": seed}

    def progress(now: Progress) -> None:
        if cut_after is not None and now.rounds_done > cut_after:
            raise Cut

    return simulate(
        Settings.model_validate(told), nodes=NODES, segment=EVERY, out=out, progress=progress, load=toy
    )


def facts(out: Path) -> tuple[bytes, dict[str, Any]]:
    summary = json.loads((out / "summary.json").read_text())
    return (out / "journal.jsonl").read_bytes(), {k: v for k, v in summary.items() if not k.endswith("_seconds")}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_was_broken_off_ends_as_one_that_was_not(tmp_path: Path, policy: str) -> None:
    run(policy, tmp_path / "whole")
    for cut_after in (NODES * EVERY + 2, NODES * 2 * EVERY + 1):
        with pytest.raises(Cut):
            run(policy, tmp_path / "broken", cut_after=cut_after)
    assert not (tmp_path / "broken" / "summary.json").exists()
    run(policy, tmp_path / "broken")
    assert facts(tmp_path / "broken") == facts(tmp_path / "whole")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_round_is_reported_once_by_every_node(tmp_path: Path, policy: str) -> None:
    summary = run(policy, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    for node in summary.nodes:
        rounds = [r["round"] for r in rows if r["event"] == "round" and r["node"] == node.id]
        assert rounds[:ROUNDS] == list(range(ROUNDS))
        assert node.rounds == len(rounds)
        assert (node.state, node.accuracy is None) == ("left", False)


def test_what_is_left_of_other_settings_is_not_gone_on_from(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        run("el", tmp_path / "one", cut_after=NODES * EVERY + 2)
    run("el", tmp_path / "one", seed=5)
    run("el", tmp_path / "other", seed=5)
    assert facts(tmp_path / "one") == facts(tmp_path / "other")


def test_the_journal_of_a_shorter_run_has_nothing_of_a_longer_one_before(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        run("local", tmp_path, cut_after=NODES * 2 * EVERY + 1)
    run("local", tmp_path, rounds=EVERY)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert {r["round"] for r in rows if r["event"] == "round"} == set(range(EVERY))


def test_nothing_is_left_but_the_journal_and_the_summary(tmp_path: Path) -> None:
    run("local", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]


def test_time_goes_on_over_the_segments(tmp_path: Path) -> None:
    run("el", tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    times = [r["time"] for r in rows]
    assert times == sorted(times)


def test_refusals_are_counted_by_reason_over_the_segments(tmp_path: Path) -> None:
    told = {"policy": {"name": "gossip", "n_peers": 4, "delta": 0.002, "quiet": 2.0}, "rounds": ROUNDS}
    summary = simulate(Settings.model_validate(told), nodes=NODES, segment=EVERY, out=tmp_path, load=toy)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    counted = Counter(row["reason"] for row in rows if row["event"] == "refused")
    assert counted["flood"] > 0
    assert json.loads((tmp_path / "summary.json").read_text())["refused"] == summary.refused == counted


@pytest.mark.parametrize("policy", [name for name, cls in POLICIES.items() if may_be_held(cls)])
def test_in_lockstep_a_run_in_segments_is_the_same_as_one_without(tmp_path: Path, policy: str) -> None:
    run(policy, tmp_path / "segments")
    told = {"policy": {"name": policy, **KNOBS.get(policy, {})}, "rounds": ROUNDS}
    simulate(Settings.model_validate(told), nodes=NODES, out=tmp_path / "whole", load=toy)
    assert facts(tmp_path / "segments") == facts(tmp_path / "whole")


@pytest.mark.parametrize("label", ["EL", "FACADE", "PENS"])
def test_the_lab_simulates_as_pfl_node_sim_does(tmp_path: Path, label: str) -> None:
    cell = next(cell for cell in load("digits-clusters", seeds=1, sets=("rounds=12",)).cells if cell.run == label)
    for name, segment in (("lab", segment_of(cell)), ("sim", None)):
        simulate(cell.settings, nodes=cell.nodes, segment=segment, out=tmp_path / name, load=toy)
    assert facts(tmp_path / "lab") == facts(tmp_path / "sim")


@pytest.mark.parametrize("label", ["EL", "FACADE", "PENS"])
def test_no_message_is_refused_because_of_a_segment(tmp_path: Path, label: str) -> None:
    """40 rounds in segments of 5: more than the 16 rounds that a peer may be ahead."""
    experiment = load("digits-clusters", seeds=1, sets=("rounds=40", "eval.every=40"))
    cell = next(cell for cell in experiment.cells if cell.run == label)
    summary = simulate(
        cell.settings, nodes=cell.nodes, segment=segment_of(cell), out=tmp_path, load=toy, level="rounds"
    )
    assert summary.refused == {}


def test_a_process_that_was_lost_and_still_works_does_not_touch_the_run_of_its_successor(tmp_path: Path) -> None:
    """A scheduler that loses a worker gives its run to another one, while the first may go on."""
    run("el", tmp_path / "whole")
    told = Settings.model_validate({"policy": {"name": "el"}, "rounds": ROUNDS})

    def progress(now: Progress) -> None:
        if now.rounds_done == NODES * EVERY + 2:
            with ThreadPoolExecutor(1) as other, pytest.raises(Cut):  # the successor has written a later state
                other.submit(run, "el", tmp_path / "both", cut_after=NODES * 2 * EVERY + 1).result()

    with pytest.raises(PflError, match="another process has taken over"):
        simulate(told, nodes=NODES, segment=EVERY, out=tmp_path / "both", progress=progress, load=toy)
    assert (tmp_path / "both" / "segments" / f"{2 * EVERY:06}").exists()
    run("el", tmp_path / "both")
    assert facts(tmp_path / "both") == facts(tmp_path / "whole")
