"""Measures that only some tables of the papers have."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.lab.measures import MEASURES, CellResult
from pfl_node.lab.report import phrases
from pfl_node.lab.results import Estimate


def found(clusters: str, **more: Any) -> CellResult:
    """A node for each letter, whose cluster is the letter's place in the alphabet."""
    nodes = [{"id": f"n{i}", "cluster": ord(c) - ord("a")} for i, c in enumerate(clusters)]
    traffic = [{"models_sent": 10 * i, "models_received": i} for i in range(len(nodes))]
    return CellResult({"per_node": [n | t for n, t in zip(nodes, traffic, strict=True)], **more})


def test_of_three_clusters_one_is_the_middle() -> None:
    accuracies = {"0": 0.2, "1": 0.7, "2": 0.5}
    assert MEASURES["middle"].of(found("abbbcc", accuracy_by_cluster=accuracies)) == 0.5


@pytest.mark.parametrize("clusters", ["aab", "abcd", ""])
def test_of_two_or_four_clusters_none_is_the_middle(clusters: str) -> None:
    accuracies = {str(i): 0.5 for i in range(4)}
    assert MEASURES["middle"].of(found(clusters, accuracy_by_cluster=accuracies)) is None


def test_the_cost_of_communication_is_what_a_node_sent_and_received() -> None:
    assert MEASURES["communication"].of(found("aaa")) == (0 + 11 + 22) / 3
    assert MEASURES["communication"].of(found("")) is None


def test_runs_that_settled_are_counted() -> None:
    values = [MEASURES["settled"].of(found("aab", settled=settled)) for settled in (True, False, True)]
    assert phrases.heading("settled") == "settled, runs"
    assert phrases.spread("settled", Estimate.of(values)) == "2 of 3"
    assert MEASURES["settled"].of(found("aab")) is None


def test_the_difference_of_two_runs_that_settled_or_not_is_a_number_of_runs() -> None:
    gaps = Estimate((1.0, 0.0, 1.0))
    assert phrases.change("settled", gaps) + phrases.gap("settled") == "+2 of 3 runs"
    assert phrases.change("settled", Estimate((-1.0, 0.0))) == f"{phrases.MINUS}1 of 2"
    assert phrases.number("settled", 1 / 3) == "0.33"
