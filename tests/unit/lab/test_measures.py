"""The figures of a cell, from a summary and a journal written down by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.lab.measures import MEASURES, CellResult, from_paper, mean_series, to_paper

RIGHT, WRONG = [[10, 0], [0, 10]], [[0, 10], [10, 0]]


def node(id: str, cluster: int | None, **more: Any) -> dict[str, Any]:
    return {"id": id, "cluster": cluster, "models_sent": 3, "models_received": 5, **more}


def found(*nodes: dict[str, Any], series: Any = None, target: float | None = None, **more: Any) -> CellResult:
    base = {
        "accuracy": 0.7,
        "accuracy_by_cluster": {},
        "models_sent": 12,
        "bytes_sent": 4_500_000,
        "cpu_seconds": 2.5,
    }
    return CellResult({**base, **more, "per_node": list(nodes)}, series or {}, target)


def of(metric: str, what: CellResult) -> float | None:
    return MEASURES[metric].of(what)


def rounds(*rows: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return dict(enumerate(rows))


# -- clusters --------------------------------------------------------------------------------------------------


def test_the_majority_is_the_larger_cluster_whatever_its_number() -> None:
    three = found(node("a", 1), node("b", 1), node("c", 0), accuracy_by_cluster={"0": 0.4, "1": 0.8})
    assert (of("majority", three), of("minority", three)) == (0.8, 0.4)


def test_of_equal_clusters_the_lower_number_is_called_the_majority() -> None:
    two = found(node("a", 1), node("b", 0), accuracy_by_cluster={"0": 0.4, "1": 0.8})
    assert (of("majority", two), of("minority", two)) == (0.4, 0.8)


def test_without_clusters_there_is_neither_majority_nor_fairness() -> None:
    alone = found(node("a", None, confusion=RIGHT), node("b", None, confusion=WRONG))
    assert [of(m, alone) for m in ("majority", "minority", "demographic_parity", "equalized_odds")] == [None] * 4


def test_the_worst_decile_is_the_mean_of_the_tenth_of_the_honest_nodes_that_do_worst() -> None:
    nodes = [node(str(i), 0, accuracy=i / 100) for i in range(20)]
    liar = node("liar", 0, accuracy=0.0, honest=False)
    assert of("worst_decile", found(liar, *reversed(nodes))) == pytest.approx(0.005)
    assert of("worst_decile", found(*nodes[3:6])) == 0.03
    assert of("worst_decile", found(node("a", 0, accuracy=None))) is None


@pytest.mark.parametrize(("nodes", "worst"), [(1, 1), (4, 1), (14, 1), (15, 2), (24, 2), (25, 3), (35, 4)])
def test_the_number_of_nodes_in_the_worst_decile_is_rounded_half_up(nodes: int, worst: int) -> None:
    every = [node(str(i), 0, accuracy=i / 100) for i in range(nodes)]
    assert of("worst_decile", found(*every)) == pytest.approx((worst - 1) / 200)


def test_fairness_is_between_clusters_whose_nodes_are_added_up() -> None:
    half = [[5, 5], [5, 5]]
    nodes = [node("a", 0, confusion=RIGHT), node("b", 0, confusion=RIGHT), node("c", 1, confusion=half)]
    assert of("equalized_odds", found(*nodes)) == pytest.approx(0.5)
    assert of("equalized_odds_sum", found(*nodes)) == pytest.approx(1.0)
    assert of("demographic_parity", found(*nodes)) == pytest.approx(0.0)


def test_a_cluster_whose_confusions_are_not_known_is_left_out() -> None:
    assert of("equalized_odds", found(node("a", 0, confusion=RIGHT), node("b", 1, confusion=None))) is None


# -- what is in the summary ------------------------------------------------------------------------------------


def test_what_a_policy_does_not_have_is_none() -> None:
    plain = found(node("a", 0))
    assert [of(m, plain) for m in ("precision", "recall", "settled_after", "rounds_to_target")] == [None] * 4


def test_neighbours_and_bytes_come_from_the_summary() -> None:
    one = found(node("a", 0), neighbours={"precision": 0.9, "recall": None})
    assert (of("precision", one), of("recall", one)) == (0.9, None)
    assert (of("megabytes", one), of("models_sent", one), of("cpu", one)) == (4.5, 12.0, 2.5)


# -- over rounds -----------------------------------------------------------------------------------------------


def test_a_series_is_the_mean_over_the_nodes_that_measured() -> None:
    series = rounds(
        {"a": {"test_accuracy": 0.2}, "b": {"test_accuracy": 0.4}},
        {"a": {}, "b": {}},
        {"a": {"test_accuracy": 0.6}, "b": {"test_accuracy": None}},
    )
    two = found(node("a", 0), node("b", 1), series=series)
    assert mean_series(two) == {0: pytest.approx(0.3), 2: 0.6}
    assert mean_series(two, cluster=1) == {0: 0.4}


def test_the_ensemble_is_what_the_nodes_told_of_the_last_round() -> None:
    series = rounds({"a": {"ensemble": 0.1}}, {"a": {"ensemble": 0.4}, "b": {"ensemble": 0.8}})
    assert of("ensemble", found(node("a", 0), node("b", 0), series=series)) == pytest.approx(0.6)
    assert of("ensemble", found(node("a", 0), series=rounds({"a": {"ensemble": None}}))) is None


def test_rounds_to_target_counts_the_rounds_that_were_done() -> None:
    series = rounds(*({"a": {"test_accuracy": value}} for value in (0.5, 0.7, 0.6, 0.9)))
    assert of("rounds_to_target", found(node("a", 0), series=series, target=0.7)) == 2
    assert of("rounds_to_target", found(node("a", 0), series=series, target=0.95)) is None


def test_nodes_are_settled_after_the_last_change_of_a_head() -> None:
    heads = [(0, 0), (1, 0), (1, 1), (1, 1)]
    series = rounds(*({"a": {"head": x}, "b": {"head": y}} for x, y in heads))
    assert of("settled_after", found(node("a", 0), node("b", 1), series=series, settled=True)) == 2


def test_nodes_that_never_change_their_head_are_settled_at_once() -> None:
    series = rounds({"a": {}}, {"a": {"head": 1}}, {"a": {"head": 1}})
    assert of("settled_after", found(node("a", 0), series=series, settled=True)) == 0


def test_with_fewer_heads_than_clusters_nothing_settles() -> None:
    """k = 1: nobody ever changes its head, and both clusters are on the same."""
    series = rounds(*[{"a": {"head": 0}, "b": {"head": 0}}] * 3)
    both = found(node("a", 0), node("b", 1), series=series, settled=False)
    assert of("settled_after", both) is None
    assert MEASURES["settled_after"].why_not(both) == "did not settle"


def test_precision_and_recall_are_for_two_clusters_or_more() -> None:
    for metric in ("precision", "recall"):
        assert MEASURES[metric].why_not(found(node("a", 0), node("b", 0))) == "not applicable"
        assert MEASURES[metric].why_not(found(node("a", 0), node("b", 1))) == ""


# -- units -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", MEASURES)
def test_a_papers_figure_survives_the_way_there_and_back(metric: str) -> None:
    assert to_paper(metric, from_paper(metric, 72.5)) == pytest.approx(72.5)


def test_accuracies_are_shares_here_and_per_cent_in_papers() -> None:
    assert from_paper("minority", 38.8) == pytest.approx(0.388)
    assert from_paper("demographic_parity", 0.0306) == 0.0306
