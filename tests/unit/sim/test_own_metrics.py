"""The metrics of a task in everything that a simulation writes and prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfl_node.cli.sim import facts
from pfl_node.lab.comparison_table import cells, columns
from pfl_node.lab.policy_comparison import Entrant, PolicyComparison
from pfl_node.settings import PolicySettings, Settings, TaskSettings
from pfl_node.sim.simulate import simulate
from pfl_node.types import LOSS, Headline

HERE = "tests.unit.sim.own_metrics_task"


def settings(task: str, policy: str = "el", **options: Any) -> Settings:
    return Settings(
        rounds=3, task=TaskSettings(name=f"{HERE}:{task}"), policy=PolicySettings(name=policy, **options)
    )


def test_a_metric_is_in_the_journal_the_summary_and_the_table(tmp_path: Path) -> None:
    found = simulate(settings("risk"), nodes=4, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    (last,) = [r for r in rows if r["event"] == "round" and r["round"] == 2 and r["node"] == found.nodes[0].id]
    assert 0.5 < last["test_auc"] <= 1
    assert "test_accuracy" not in last
    assert found.headline == Headline("auc", higher=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"] == {"auc": pytest.approx(found.metrics["auc"])}
    assert summary["per_node"][0]["metrics"]["auc"] == last["test_auc"]
    assert facts(found)["auc"] == f"{found.metrics['auc']:.4g}"
    assert "accuracy" not in facts(found)


def test_a_regression_shows_its_loss() -> None:
    found = simulate(settings("forecast"), nodes=3)
    assert found.headline == LOSS
    assert facts(found)["loss"] == f"{found.loss:.4g}"
    assert "accuracy" not in facts(found)


@pytest.mark.parametrize("scored", ["mine", "theirs"])
def test_pens_rates_by_the_tasks_metric(scored: str) -> None:
    options = {"metric": "accuracy", "scored": scored} if scored == "theirs" else {}
    policy = "pens_pull" if scored == "theirs" else "pens"
    found = simulate(settings("risk", policy, **options), nodes=4)
    assert found.metrics["auc"] > 0.5


def test_policies_are_compared_by_the_headline_lowest_loss_first() -> None:
    plan = PolicyComparison.plan(settings("forecast"), [Entrant(n, n) for n in ("local", "el")], nodes=3)
    found = plan.run(workers=1)  # each worker imports torch
    assert columns(found)[:2] == ["policy", "loss"]
    losses = [float(cells(found, entrant)[1]) for entrant in found.ran]
    assert losses == sorted(losses)
