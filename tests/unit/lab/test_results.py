"""Means, intervals and verdicts over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pfl_node.lab.experiment import Cell, Claim, Experiment
from pfl_node.lab.measures import CellResult
from pfl_node.lab.report import phrases
from pfl_node.lab.results import Estimate, Results, t95
from pfl_node.settings import Settings

TARGET = 0.5


def found(seeds: Mapping[str, list[dict[str, Any]]], claim: Claim) -> Results:
    """Of each run, seed by seed, the accuracies by round."""
    settings = Settings(rounds=40)
    cells = {
        Cell(run, "", seed, 1, settings, f"{run}/{seed}"): CellResult(
            {"accuracy": rows["accuracy"], "bytes_sent": 40e6, "per_node": [{"id": "n", "cluster": None}]},
            {
                r: {"n": {"test_accuracy": a, "bytes_sent": (r + 1) * 1e6}}
                for r, a in enumerate(rows.get("rounds", []))
            },
            TARGET,
        )
        for run, of in seeds.items()
        for seed, rows in enumerate(of)
        if rows
    }
    metrics, numbers = (claim.metric,), tuple(range(3))
    experiment = Experiment("x", "x", "x", "", "quick", numbers, tuple(cells), metrics, TARGET, claims=(claim,))
    return Results(experiment, cells)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706), (4, 2.776), (9, 2.262), (10, 2.2281), (15, 2.1314), (30, 2.0423), (1000, 1.962)],
)
def test_students_t_is_that_of_the_tables(degrees: int, t: float) -> None:
    assert t95(degrees) == pytest.approx(t, abs=0.0005)


def test_the_interval_of_a_mean_is_students() -> None:
    assert Estimate((1.0, 2.0, 3.0)).half_width == pytest.approx(4.303 * 1 / 3**0.5)
    assert Estimate((1.0,)).half_width is None


def test_a_claim_is_judged_seed_by_seed() -> None:
    claim = Claim("accuracy", "A", "B", by=0.05)
    a, b = ([{"accuracy": v} for v in values] for values in ((0.5, 0.7, 0.9), (0.4, 0.6, 0.88)))
    (verdict,) = found({"A": a, "B": b}, claim).verdicts()
    assert verdict.holds
    assert verdict.estimate is not None
    assert verdict.estimate.values == pytest.approx((0.1, 0.1, 0.02))
    assert verdict.holding == 2
    told = phrases.verdict(verdict)
    assert told == "accuracy of A above B by 5.0 points or more: +7.3 ± 11.5 points, for 2 of 3 seeds"


def test_a_seed_that_one_of_them_lacks_does_not_count() -> None:
    a, b = [{"accuracy": 0.9}, {"accuracy": 0.1}], [{"accuracy": 0.5}]
    (verdict,) = found({"A": a, "B": b}, Claim("accuracy", "A", "B")).verdicts()
    assert verdict.difference == pytest.approx(0.4)
    (nothing,) = found({"A": [{}, {"accuracy": 0.1}], "B": b}, Claim("accuracy", "A", "B")).verdicts()
    assert nothing.estimate is None
    assert not nothing.holds
    assert phrases.judgement(nothing) == "not measured"
    assert phrases.verdict(nothing).endswith(": no seed has both runs")


def test_who_never_came_to_the_target_took_longer_than_all_its_rounds() -> None:
    never, soon = {"accuracy": 0.4, "rounds": [0.3, 0.4]}, {"accuracy": 0.6, "rounds": [0.3, 0.6]}
    (verdict,) = found({"A": [never], "B": [soon]}, Claim("rounds_to_target", "A", "B", by=10)).verdicts()
    assert verdict.holds
    assert verdict.at_least
    assert phrases.verdict(verdict).endswith("by 10 rounds or more: at least +38 rounds")
    (turned,) = found({"A": [soon], "B": [never]}, Claim("rounds_to_target", "A", "B")).verdicts()
    assert phrases.judgement(turned) == "one seed: not as claimed"
    assert phrases.verdict(turned).endswith("A above B: at most −38 rounds")
    (neither,) = found({"A": [never], "B": [never]}, Claim("rounds_to_target", "A", "B")).verdicts()
    assert phrases.judgement(neither) == "not measured"


@pytest.mark.parametrize("metric", ["rounds_to_target", "rounds_to.50", "megabytes_to_target"])
def test_a_seed_with_which_the_lower_run_never_came_to_the_target_counts_against_the_claim(metric: str) -> None:
    """Without it the claim would hold for two of two seeds."""
    slow = {"accuracy": 0.6, "rounds": [0.3] * 10 + [0.6]}
    soon = {"accuracy": 0.6, "rounds": [0.3, 0.6]}
    never = {"accuracy": 0.4, "rounds": [0.3, 0.4]}
    claim = Claim(metric, "A", "B")
    (verdict,) = found({"A": [slow, slow, slow], "B": [soon, soon, never]}, claim).verdicts()
    assert (verdict.at_most, verdict.seeds, verdict.holding) == (True, (0, 1, 2), 2)
    assert phrases.judgement(verdict) == "undecided"
    (both,) = found({"A": [slow, never, slow], "B": [soon, soon, never]}, claim).verdicts()
    assert (both.at_least, both.at_most) == (True, True)
    assert phrases.judgement(both) == "undecided"
