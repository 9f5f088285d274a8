"""Fairness between groups, from confusion matrices: rows are the true classes, columns the predictions. NaN: no
two groups have a class in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import isfinite, nan

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Confusion = Sequence[Sequence[float]]


def demographic_parity(groups: Sequence[Confusion]) -> float:
    """The mean over the classes of |P(predicted y | group 1) - P(predicted y | group 0)|; 0 is fair. With more
    than two groups, the largest difference between any two of them."""
    return _gap(groups, _predicted)


def equalized_odds(groups: Sequence[Confusion]) -> float:
    """The mean over the classes of the difference of true positive rates, as the FACADE thesis defines it."""
    return _gap(groups, _true_positives)


def equalized_odds_sum(groups: Sequence[Confusion]) -> float:
    """The sum of the differences of true and false positive rates, which the tables of the thesis print; with more
    than two groups, the largest sum of any pair."""
    pairs = combinations(groups, 2)
    return _largest([_gap(pair, _true_positives) + _gap(pair, _false_positives) for pair in pairs])


def _gap(groups: Sequence[Confusion], rates: Callable[[Matrix], Matrix]) -> float:
    """Skips classes for which one of the groups has no rate."""
    found = [rates(np.asarray(group, dtype=np.float64)) for group in groups]
    gaps = [np.abs(a - b) for a, b in combinations(found, 2)]
    return _largest([float(np.nanmean(gap)) if np.isfinite(gap).any() else nan for gap in gaps])


def _largest(gaps: Sequence[float]) -> float:
    """Of the known gaps; 0 for a group alone."""
    return max((gap for gap in gaps if isfinite(gap)), default=nan if gaps else 0.0)


def _predicted(matrix: Matrix) -> Matrix:
    return _share(matrix.sum(axis=0), matrix.sum())


def _true_positives(matrix: Matrix) -> Matrix:
    return _share(matrix.diagonal(), matrix.sum(axis=1))


def _false_positives(matrix: Matrix) -> Matrix:
    wrong = matrix.sum(axis=0) - matrix.diagonal()
    return _share(wrong, matrix.sum() - matrix.sum(axis=1))


def _share(part: Matrix, whole: Matrix | float) -> Matrix:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(part / whole, dtype=np.float64)
