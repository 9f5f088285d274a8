"""Measures computed from the records of nodes."""

from __future__ import annotations

import pytest

from pfl_node.sim.outcome import NodeRecord, Outcome, PrecisionRecall, fair_accuracy


def of(*nodes: NodeRecord) -> Outcome:
    return Outcome("pens", "digits", 0, 1, nodes, {})


def test_the_mean_is_over_the_nodes_that_were_measured() -> None:
    nodes = [NodeRecord("a", accuracy=0.5), NodeRecord("b", accuracy=0.7), NodeRecord("c"), NodeRecord("d")]
    assert of(*nodes).accuracy == pytest.approx(0.6)
    assert of(NodeRecord("c"), NodeRecord("d", accuracy=float("nan"))).accuracy is None


def test_the_mean_loss_is_over_the_finite_ones() -> None:
    assert of(NodeRecord("a", loss=1.0), NodeRecord("b", loss=3.0), NodeRecord("c")).loss == pytest.approx(2.0)
    assert of(NodeRecord("a", loss=float("inf")), NodeRecord("b")).loss is None


def test_accuracy_by_cluster_leaves_out_what_is_unknown() -> None:
    nodes = [
        NodeRecord("a", cluster=1, accuracy=0.4),
        NodeRecord("b", cluster=1, accuracy=0.6),
        NodeRecord("c", cluster=0, accuracy=0.9),
        NodeRecord("d", cluster=2),
        NodeRecord("e", accuracy=0.1),
    ]
    assert of(*nodes).by_cluster == {0: 0.9, 1: pytest.approx(0.5)}


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
    found = of(*nodes).neighbour_precision
    assert found is not None
    assert found.precision == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert found.recall == pytest.approx((0.5 + 1.0 + 0.0) / 3)


def test_with_one_cluster_there_is_nobody_to_be_told_apart_from() -> None:
    nodes = [NodeRecord("a", cluster=0, neighbours=("b",)), NodeRecord("b", cluster=0, neighbours=())]
    assert of(*nodes).neighbour_precision is None


def test_a_policy_without_neighbours_has_no_precision() -> None:
    assert of(NodeRecord("a", cluster=0)).neighbour_precision is None


def test_heads_are_counted_for_each_cluster() -> None:
    nodes = [
        NodeRecord("a", cluster=0, head=1),
        NodeRecord("b", cluster=0, head=1),
        NodeRecord("c", cluster=1, head=0),
    ]
    assert of(*nodes).heads == {0: {1: 2}, 1: {0: 1}}
    assert of(NodeRecord("a", cluster=0)).heads is None


def test_settled_means_one_head_for_each_cluster_and_no_two_clusters_on_one() -> None:
    assert of(*chose(0, head=1, n=14), *chose(1, head=0, n=6)).settled
    assert not of(*chose(0, head=1, n=13), *chose(0, head=0, n=1), *chose(1, head=0, n=6)).settled
    assert not of(*chose(0, head=0, n=14), *chose(1, head=0, n=6)).settled


def chose(cluster: int, *, head: int, n: int) -> list[NodeRecord]:
    return [NodeRecord(f"{cluster}/{head}/{i}", cluster=cluster, head=head) for i in range(n)]


def test_the_figures_are_those_of_the_honest_and_a_quarantine_is_right_or_wrong() -> None:
    good = NodeRecord("a", accuracy=0.9, loss=1.0, quarantined=("x", "b"))
    other = NodeRecord("b", accuracy=0.7, loss=2.0, quarantined=("x",))
    bad = [NodeRecord(name, accuracy=0.1, loss=9.0, honest=False, quarantined=("a",)) for name in ("x", "y")]
    nodes = [good, other, *bad]
    assert of(*nodes).accuracy == pytest.approx(0.8)
    assert of(*nodes).loss == pytest.approx(1.5)
    assert of(*nodes).detection == PrecisionRecall(precision=2 / 3, recall=2 / 4)
    assert of(good, other).detection is None
    assert of(other, *bad, NodeRecord("c")).detection == PrecisionRecall(1.0, 1 / 4)
    assert of(NodeRecord("c"), *bad).detection == PrecisionRecall(None, 0.0)
