"""Paired tests of two runs over the seeds that both have, corrected for several comparisons.

The same seed gives all runs the same data, so the tests use the differences seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from pfl_node.lab.results import Estimate, Results

EXACT = 16  # seeds up to which all signs are tried
DRAWN = 1 << EXACT  # number of random signs for more seeds


@dataclass(frozen=True, slots=True)
class PairedTest:
    metric: str
    point: str
    a: str  # a run
    b: str
    difference: Estimate  # a - b, seed by seed
    t: float | None  # p of the paired t test; None: fewer than two seeds, or all differences are equal
    signs: float | None  # p of the sign-flip permutation test
    t_holm: float | None = None  # after Holm's correction over all pairs and points of the metric
    signs_holm: float | None = None

    @property
    def seeds(self) -> int:
        return len(self.difference.values)


def paired_tests(found: Results, metrics: Sequence[str]) -> list[PairedTest]:
    tests = []
    for metric in metrics:
        family = list(_family(found, metric))
        t, signs = holm([test.t for test in family]), holm([test.signs for test in family])
        for test, one, other in zip(family, t, signs, strict=True):
            tests.append(replace(test, t_holm=one, signs_holm=other))
    return tests


def _family(found: Results, metric: str) -> Iterator[PairedTest]:
    experiment = found.experiment
    for point in experiment.points:
        for a, b in combinations(experiment.runs, 2):
            first, second = (found.by_seed(run, point, metric) for run in (a, b))
            gaps = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
            if estimate := Estimate.of(gaps):
                yield PairedTest(metric, point, a, b, estimate, paired_t(gaps), sign_flips(gaps))


def paired_t(differences: Sequence[float]) -> float | None:
    """The two-sided p of Student's t test that the mean difference is 0."""
    from scipy.special import stdtr

    n = len(differences)
    if n < 2 or (spread := stdev(differences)) == 0:
        return None
    return float(2 * stdtr(n - 1, -abs(fmean(differences)) / (spread / sqrt(n))))


def sign_flips(differences: Sequence[float]) -> float | None:
    """The two-sided p of the permutation test: how often random signs give a mean at least as far from 0. It
    assumes nothing about the distribution. With n seeds it is never below 2 / 2**n."""
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2:
        return None
    if n <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWN, n))
    means = np.abs(signs @ values)
    least = abs(values.sum())
    return float(np.mean(means >= least - 1e-12 * max(1.0, least)))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction. None means that there was no test, and does not count."""
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted
