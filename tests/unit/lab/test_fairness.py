"""Fairness of groups: against fairlearn, class by class, and against the figure that the FACADE thesis prints."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
import numpy.typing as npt
import pytest
from fairlearn.metrics import (
    demographic_parity_difference,
    equal_opportunity_difference,
    false_positive_rate_difference,
)

from pfl_node.lab import fairness
from pfl_node.lab.measures import MEASURES, CellResult

Labels = npt.NDArray[np.int64]
CLASSES = 5


def random_groups(seed: int, groups: int = 2) -> list[list[list[int]]]:
    drawn = np.random.default_rng(seed).integers(1, 40, size=(groups, CLASSES, CLASSES))
    found: list[list[list[int]]] = drawn.tolist()
    return found


def samples(groups: list[list[list[int]]]) -> tuple[Labels, Labels, Labels]:
    """True class, said class and group of every sample that the matrices count."""
    rows = [
        (true, said, group)
        for group, matrix in enumerate(groups)
        for true, row in enumerate(matrix)
        for said, n in enumerate(row)
        for _ in range(n)
    ]
    true, said, group = np.array(rows).T
    return true, said, group


def by_fairlearn(of: Callable[..., float], groups: list[list[list[int]]]) -> float:
    """Its functions know two classes: each class against all others, and the mean of that."""
    true, said, group = samples(groups)
    gaps = [of(true == c, said == c, sensitive_features=group) for c in range(CLASSES)]
    return float(np.mean(gaps))


@pytest.mark.parametrize("seed", range(4))
def test_the_three_measures_are_fairlearns_taken_class_by_class(seed: int) -> None:
    groups = random_groups(seed)
    tpr = by_fairlearn(equal_opportunity_difference, groups)
    fpr = by_fairlearn(false_positive_rate_difference, groups)
    assert fairness.demographic_parity(groups) == pytest.approx(
        by_fairlearn(demographic_parity_difference, groups)
    )
    assert fairness.equalized_odds(groups) == pytest.approx(tpr)
    assert fairness.equalized_odds_sum(groups) == pytest.approx(tpr + fpr)


def balanced(accuracy: float, classes: int = 10, each: float = 1000) -> list[list[float]]:
    """Every class is as often right, and its errors fall evenly on the others."""
    wrong = each * (1 - accuracy) / (classes - 1)
    return [[each * accuracy if said == true else wrong for said in range(classes)] for true in range(classes)]


def test_the_thesis_table_prints_the_sum_of_both_rates() -> None:
    """FACADE thesis, table 4.2, 30:2, EL: accuracies 71.99 and 38.77, equalized odds printed as 0.3693. The
    formula of its text gives 0.3322; with the false positive rates it is 0.3691."""
    groups = [balanced(0.7199), balanced(0.3877)]
    assert fairness.equalized_odds(groups) == pytest.approx(0.3322)
    assert fairness.equalized_odds_sum(groups) == pytest.approx(0.3691, abs=5e-5)
    assert fairness.equalized_odds_sum(groups) == pytest.approx(0.3693, abs=0.0081)  # the table's own spread
    assert fairness.demographic_parity(groups) == pytest.approx(0)


@pytest.mark.parametrize(
    ("majority", "minority", "printed", "spread"),
    [(72.21, 34.94, 0.4143, 0.0075), (58.47, 52.56, 0.0684, 0.0072), (73.32, 59.96, 0.1491, 0.0059)],
    ids=["DAC", "DePRL", "FACADE"],
)
def test_the_other_rows_of_that_table_say_so_too(
    majority: float, minority: float, printed: float, spread: float
) -> None:
    groups = [balanced(majority / 100), balanced(minority / 100)]
    assert fairness.equalized_odds_sum(groups) == pytest.approx(printed, abs=spread)


def test_groups_that_are_treated_alike_have_no_gap() -> None:
    group = random_groups(7)[0]
    larger = [[3 * n for n in row] for row in group]
    for rule in (fairness.demographic_parity, fairness.equalized_odds, fairness.equalized_odds_sum):
        assert rule([group, larger]) == pytest.approx(0)


def test_of_several_groups_the_two_that_differ_most_count() -> None:
    groups = [balanced(0.9), balanced(0.7), balanced(0.4)]
    assert fairness.equalized_odds(groups) == pytest.approx(0.5)


def test_a_class_that_a_group_does_not_have_says_nothing() -> None:
    whole = [[8, 2, 0], [0, 10, 0], [1, 0, 9]]
    lacking = [[6, 4, 0], [0, 10, 0], [0, 0, 0]]
    assert fairness.equalized_odds([whole, lacking]) == pytest.approx((0.2 + 0.0) / 2)


def test_groups_without_a_common_class_are_not_called_fair() -> None:
    one, other = [[9, 1], [0, 0]], [[0, 0], [4, 6]]
    for rule in (fairness.equalized_odds, fairness.equalized_odds_sum):
        assert isnan(rule([one, other]))
        assert rule([one, other, one]) == 0  # of the pair that can be compared
    nodes = [{"id": i, "cluster": i, "confusion": matrix} for i, matrix in enumerate((one, other))]
    assert MEASURES["equalized_odds"].of(CellResult({"per_node": nodes})) is None
    assert MEASURES["demographic_parity"].of(CellResult({"per_node": nodes})) == pytest.approx(0.5)


def test_one_group_alone_has_no_gap() -> None:
    assert fairness.equalized_odds([balanced(0.5)]) == 0


def test_with_three_groups_both_differences_are_of_one_pair() -> None:
    groups = random_groups(5, groups=3)
    pairs = [[groups[i], groups[j]] for i, j in ((0, 1), (0, 2), (1, 2))]
    assert fairness.equalized_odds_sum(groups) == max(map(fairness.equalized_odds_sum, pairs))
    apart = fairness.equalized_odds(groups) + max(
        fairness.equalized_odds_sum(pair) - fairness.equalized_odds(pair) for pair in pairs
    )
    assert fairness.equalized_odds_sum(groups) < apart  # the two largest are of different pairs here
