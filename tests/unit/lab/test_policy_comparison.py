"""Comparing: who takes part with which knobs, the runs in their processes, the rows and how they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import ConfigError
from pfl_node.lab import comparison_table
from pfl_node.lab.experiment import Cell
from pfl_node.lab.policy_comparison import Entrant, Fit, PolicyComparison, compare, enter
from pfl_node.lab.results import Estimate
from pfl_node.settings import EvalSettings, Settings, TrainSettings
from pfl_node.sim import simulate
from pfl_node.sim.run_jobs import Message
from pfl_node.sim.sim_worker import RunOrder

ROOT = Path(__file__).resolve().parents[2]
QUICK = Settings(rounds=2, train=TrainSettings(steps=1), device="cpu")


def entered(*names: str, **given: Any) -> dict[str, Entrant]:
    shared, own = given.pop("shared", {}), given.pop("own", {})
    return {e.name: e for e in enter(names, shared, own, nodes=20, rounds=40, **given)}


# -- who takes part --------------------------------------------------------------------------------------------


def test_a_shared_knob_goes_to_those_that_have_it_and_an_own_one_wins() -> None:
    found = entered("pens", "gossip", "local", shared={"n_peers": 3}, own={"pens": {"n_peers": 4, "m": 1}})
    assert found["gossip"].knobs == {"n_peers": 3}
    assert found["pens"].knobs == {"n_peers": 4, "m": 1, "T": 20}
    assert found["local"].knobs == {}


def test_knobs_fit_unless_the_papers_own_are_wanted() -> None:
    assert entered("gossip")["gossip"].knobs == {"n_peers": 5}
    assert entered("gossip", fitted=False)["gossip"].knobs == {}


@pytest.mark.parametrize(
    ("names", "given", "line"),
    [
        (["pens", "penz"], {}, "unknown policy 'penz': did you mean 'pens'?"),
        (
            ["pens", "el"],
            {"shared": {"degre": 3}},
            "policy.degre is not a knob of pens, el: did you mean 'degree'?",
        ),
        (["pens", "el"], {"own": {"el": {"T": 3}}}, "el: policy.T is not a knob of El: known: .*degree.*"),
        (["pens", "el"], {"own": {"pen": {"T": 3}}}, "policy.pen.T: 'pen' is not run; did you mean 'pens'?"),
        (["pens", "el"], {"own": {"pens": {"T": 0}}}, "pens: policy.T = 0: .* 1 .*"),
        (["pens", "el"], {"shared": {"degree": 0}}, "policy.degree = 0: .* 1 .*"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(names: list[str], given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line.replace("?", r"\?")):
        entered(*names, **given)


def test_a_shared_value_that_only_some_refuse_is_no_mistake() -> None:
    found = entered("pens", "dac", shared={"n_sampled": 1})
    assert found["pens"].refusal == "policy (Pens): m = 2 is more than n_sampled = 1"
    assert found["dac"].refusal is None


def test_users_policies_go_without_their_folder_unless_they_have_one_name(tmp_path: Path) -> None:
    text = "from pfl_node.policies.local import Local\nclass Mine(Local): pass\n"
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text)
    one, two = (f"{tmp_path}/{folder}/mine.py:Mine" for folder in "ab")
    assert [e.title for e in entered("local", one).values()] == ["local", "mine.py:Mine"]
    assert [e.title for e in entered(one, two).values()] == [one, two]


# -- the runs --------------------------------------------------------------------------------------------------


def test_each_run_is_what_a_simulation_alone_is(tmp_path: Path) -> None:
    entrants = enter(["local", "el", "feded"], {}, {}, nodes=4, rounds=2)
    heard: list[tuple[Cell, Message]] = []
    planned = PolicyComparison.plan(QUICK, entrants, nodes=4, seeds=2)
    found = planned.run(workers=2, out=tmp_path, on_cell=lambda *message: heard.append(message))
    for title in ("local", "el"):
        for seed, run in enumerate(found.runs(found.entrant(title))):
            assert {**run, **TIMES} == alone(title, seed) | TIMES
            assert json.loads((tmp_path / title / str(seed) / "summary.json").read_text())["loss"] == run["loss"]
            assert (tmp_path / title / str(seed) / "journal.jsonl").exists()
    assert sorted(entrant.title for entrant in found.ran) == ["el", "local"]
    assert found.failures["feded"].startswith("policy feded needs auxiliary samples")
    ends = sorted((cell.run, cell.seed, m["event"]) for cell, m in heard if m["event"] != "progress")
    assert ends == [
        *(("el", seed, "done") for seed in (0, 1)),
        *(("feded", seed, "failed") for seed in (0, 1)),
        *(("local", seed, "done") for seed in (0, 1)),
    ]


def test_how_often_and_on_what_models_are_measured_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunOrder] = []

    def note(run: object, orders: Sequence[RunOrder], *_: object) -> list[Message]:
        seen.extend(orders)
        return [{"event": "failed", "why": "it was not meant to run"} for _ in orders]

    monkeypatch.setattr("pfl_node.lab.policy_comparison.run_all", note)
    for asked in (EvalSettings(), EvalSettings(on=("test",)), EvalSettings(every=3)):
        compare(QUICK.model_copy(update={"eval": asked}), enter(["el"], {}, {}, nodes=4, rounds=2), nodes=4)
    assert [(o.settings.eval.every, o.settings.eval.on) for o in seen] == [
        (2, ("val", "test")),
        (2, ("test",)),
        (3, ("val", "test")),
    ]


TIMES = {"wall_seconds": 0.0, "cpu_seconds": 0.0}


def alone(policy: str, seed: int) -> dict[str, Any]:
    """The same run in this process. In a comparison models are measured at the end only."""
    told = QUICK.model_dump() | {"policy": {"name": policy}, "seed": seed, "eval": {"every": 2}}
    summary = simulate(Settings.model_validate(told), nodes=4).as_dict()
    del summary["per_node"]
    found: dict[str, Any] = json.loads(json.dumps(summary))
    return found


# -- the table -------------------------------------------------------------------------------------------------


def run(accuracy: float, **more: Any) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "fair_accuracy": accuracy, "accuracy_by_cluster": {"0": accuracy, "1": 0.5}}
    return figures | {"models_sent": 1200, "bytes_sent": 3_400_000, "cpu_seconds": 1.25} | more


Row = tuple[Entrant, list[dict[str, Any]] | str]  # its runs, or why it failed


def found(*rows: Row, seeds: int = 2) -> PolicyComparison:
    entrants = [entrant for entrant, _ in rows]
    planned = PolicyComparison.plan(Settings(rounds=40), entrants, nodes=20, seeds=seeds)
    outcomes = {entrant.title: outcome for entrant, outcome in rows}
    last: dict[Cell, Message] = {}
    for cell in planned.cells:
        outcome = outcomes[cell.run]
        if isinstance(outcome, str):
            last[cell] = {"event": "failed", "why": outcome}
        else:
            last[cell] = {"event": "done", "summary": outcome[cell.seed]}
    return replace(planned, last=last)


PENS: Row = (
    Entrant("pens", "pens", {"m": 1}, Fit({"T": 20, "m": 2})),
    [run(0.9, neighbours={"precision": 1.0, "recall": 0.5}), run(0.95, neighbours={"precision": None})],
)
LOCAL: Row = (Entrant("local", "local"), [run(0.8), run(0.82)])
FEDED: Row = (Entrant("feded", "feded", fit=Fit(rounds=1)), "it needs auxiliary samples")


def test_a_figure_over_seeds_has_a_mean_and_its_ends_and_gaps_do_not_count() -> None:
    estimate = Estimate.of([0.5, None, 1.0])
    assert estimate is not None
    assert (estimate.mean, estimate.low, estimate.high) == (0.75, 0.5, 1.0)
    assert Estimate.of([None]) is None
    both = found(PENS, LOCAL)
    assert both.estimate(PENS[0], "neighbours", "precision") == Estimate((1.0,))
    assert both.estimate(LOCAL[0], "neighbours", "precision") is None


def test_a_policy_that_fails_with_one_seed_has_failed() -> None:
    both = found(LOCAL, FEDED)
    half = {**both.last, both.cells[1]: {"event": "failed", "why": "it broke"}}
    assert replace(both, last=half).failures["local"] == "it broke (seed 1)"
    assert both.failures == {"feded": "it needs auxiliary samples"}


def test_the_table_has_a_row_for_each_policy_and_says_what_was_run() -> None:
    lines = comparison_table.markdown(found(LOCAL, PENS, FEDED)).splitlines()
    assert [re.sub(" +", " ", line) for line in lines] == [
        "# digits, 20 nodes, 40 rounds, seeds 0 to 1",
        "",
        comparison_table.legend(found(PENS)),
        "",
        "| policy | accuracy | cluster 0 | cluster 1 | fair | precision | recall | models | MB | CPU s |",
        re.sub(" +", " ", lines[5]),
        "| pens | 92.5 (90.0-95.0) | 92.5 (90.0-95.0) | 50.0 (50.0-50.0) "
        "| 92.5 | 100.0 | 50.0 | 1,200 | 3.4 | 1.2 |",
        "| local | 81.0 (80.0-82.0) | 81.0 (80.0-82.0) | 50.0 (50.0-50.0) | 81.0 | | | 1,200 | 3.4 | 1.2 |",
        "",
        "- feded did not run: it needs auxiliary samples",
        "- pens: T=20 (fitted), m=1 (given)",
    ]


def test_what_nobody_has_is_no_column() -> None:
    one: Row = (Entrant("local", "local"), [run(0.8, accuracy_by_cluster={"0": 0.8})])
    assert comparison_table.columns(found(one, seeds=1)) == ["policy", "accuracy", "models", "MB", "CPU s"]
    assert comparison_table.cells(found(one, seeds=1), one[0]) == ["local", "80.0", "1,200", "3.4", "1.2"]


def test_policies_with_the_same_knobs_share_a_line() -> None:
    rows: list[Row] = [(Entrant(n, n, fit=Fit({"C": 0.5})), LOCAL[1]) for n in ("fedavg", "fedprox")]
    one_shot: Row = (Entrant("feded", "feded", fit=Fit(rounds=1)), LOCAL[1])
    assert comparison_table.knobs(found(*rows, LOCAL, one_shot)) == [
        "fedavg, fedprox: C=0.5 (fitted)",
        "feded: rounds=1 (fitted)",
    ]


def test_the_files_hold_the_table_and_every_run(tmp_path: Path) -> None:
    comparison_table.write(found(PENS, LOCAL, FEDED), tmp_path)
    assert (tmp_path / "compare.md").read_text() == comparison_table.markdown(found(PENS, LOCAL, FEDED))
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["seeds"] == [0, 1]
    pens, local, feded = written["rows"]
    assert pens["accuracy"] == {"mean": pytest.approx(0.925), "low": 0.9, "high": 0.95}
    assert pens["accuracy_by_cluster"]["1"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert [r["accuracy"] for r in pens["runs"]] == [0.9, 0.95]
    assert (pens["knobs"], local["precision"]) == ({"T": 20, "m": 1}, None)
    assert feded == {
        "policy": "feded",
        "name": "feded",
        "rounds": 1,
        "knobs": {},
        "failure": "it needs auxiliary samples",
    }
