"""Measures computed from the records of nodes."""

from __future__ import annotations

import pytest

from pfl_node.sim.outcome import (
    Detection,
    NodeRecord,
    accuracy_by_cluster,
    detection,
    fair_accuracy,
    heads_by_cluster,
    mean_accuracy,
    mean_loss,
    neighbour_precision,
    settled,
)


def test_the_mean_is_over_the_nodes_that_were_measured() -> None:
    nodes = [NodeRecord("a", accuracy=0.5), NodeRecord("b", accuracy=0.7), NodeRecord("c"), NodeRecord("d")]
    assert mean_accuracy(nodes) == pytest.approx(0.6)
    assert mean_accuracy([NodeRecord("c"), NodeRecord("d", accuracy=float("nan"))]) is None


def test_the_mean_loss_is_over_the_finite_ones() -> None:
    assert mean_loss([NodeRecord("a", loss=1.0), NodeRecord("b", loss=3.0), NodeRecord("c")]) == pytest.approx(2.0)
    assert mean_loss([NodeRecord("a", loss=float("inf")), NodeRecord("b")]) is None


def test_accuracy_by_cluster_leaves_out_what_is_unknown() -> None:
    nodes = [
        NodeRecord("a", cluster=1, accuracy=0.4),
        NodeRecord("b", cluster=1, accuracy=0.6),
        NodeRecord("c", cluster=0, accuracy=0.9),
        NodeRecord("d", cluster=2),
        NodeRecord("e", accuracy=0.1),
    ]
    assert accuracy_by_cluster(nodes) == {0: 0.9, 1: pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("majority", "minority", "fair"),
    [(64.0, 63.8, 75.9), (72.0, 38.8, 59.2), (73.3, 60.0, 73.3), (69.5, 69.6, 79.7)],
)
def test_fair_accuracy_is_that_of_the_facade_tables(majority: float, minority: float, fair: float) -> None:
    found = fair_accuracy({0: majority / 100, 1: minority / 100})
    assert found is not None
    assert 100 * found == pytest.approx(fair, abs=0.1)


def test_fair_accuracy_of_nothing_is_unknown() -> None:
    assert fair_accuracy({}) is None


def test_precision_and_recall_are_means_over_the_nodes() -> None:
    nodes = [
        NodeRecord("a", cluster=0, neighbours=("b", "x")),  # 1 of 2, 1 of 2
        NodeRecord("b", cluster=0, neighbours=("a", "c")),  # 2 of 2, 2 of 2
        NodeRecord("c", cluster=0, neighbours=()),  # nobody chosen: no precision, recall 0
        NodeRecord("x", cluster=1, neighbours=("a",)),  # 0 of 1, alone in its cluster
    ]
    found = neighbour_precision(nodes)
    assert found is not None
    assert found.precision == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert found.recall == pytest.approx((0.5 + 1.0 + 0.0) / 3)


def test_with_one_cluster_there_is_nobody_to_be_told_apart_from() -> None:
    nodes = [NodeRecord("a", cluster=0, neighbours=("b",)), NodeRecord("b", cluster=0, neighbours=())]
    assert neighbour_precision(nodes) is None


def test_a_policy_without_neighbours_has_no_precision() -> None:
    assert neighbour_precision([NodeRecord("a", cluster=0)]) is None


def test_heads_are_counted_for_each_cluster() -> None:
    nodes = [
        NodeRecord("a", cluster=0, head=1),
        NodeRecord("b", cluster=0, head=1),
        NodeRecord("c", cluster=1, head=0),
    ]
    assert heads_by_cluster(nodes) == {0: {1: 2}, 1: {0: 1}}
    assert heads_by_cluster([NodeRecord("a", cluster=0)]) is None


def test_settled_means_one_head_for_each_cluster_and_no_two_clusters_on_one() -> None:
    assert settled({0: {1: 14}, 1: {0: 6}})
    assert not settled({0: {1: 13, 0: 1}, 1: {0: 6}})
    assert not settled({0: {0: 14}, 1: {0: 6}})


def test_the_figures_are_those_of_the_honest_and_a_quarantine_is_right_or_wrong() -> None:
    good = NodeRecord("a", accuracy=0.9, loss=1.0, quarantined=("x", "b"))
    other = NodeRecord("b", accuracy=0.7, loss=2.0, quarantined=("x",))
    bad = [NodeRecord(name, accuracy=0.1, loss=9.0, honest=False, quarantined=("a",)) for name in ("x", "y")]
    nodes = [good, other, *bad]
    assert mean_accuracy(nodes) == pytest.approx(0.8)
    assert mean_loss(nodes) == pytest.approx(1.5)
    assert detection(nodes) == Detection(precision=2 / 3, recall=2 / 4)
    assert detection([good, other]) is None
    assert detection([other, *bad, NodeRecord("c")]) == Detection(1.0, 1 / 4)
    assert detection([NodeRecord("c"), *bad]) == Detection(None, 0.0)
