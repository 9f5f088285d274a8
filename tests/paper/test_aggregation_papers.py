"""The rules of `aggregate` against the papers they come from. Each test cites its statement.

Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates": median, trimmed mean.
Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent": Krum, Multi-Krum.
He, Karimireddy, Jaggi 2022, "Byzantine-Robust Decentralized Learning via ClippedGossip": self-centred clipping.
Gaucher, Dieuleveut, Hendrikx 2025, "Unified Breakdown Analysis for Byzantine Robust Gossip": its radius, CS+.
"""

from __future__ import annotations

import random
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pfl_node.settings import AggregateSettings
from tests.vectors import Rows, by, combined, norms, numbers, spread, wild

Attack = tuple[Rows, Rows, int]


@st.composite
def attacks(draw: st.DrawFn) -> Attack:
    """Honest models, at most f malicious ones of any size, and f, within the bounds of every rule."""
    width, f = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    honest = draw(arrays(np.float32, (draw(st.integers(f + 3, f + 6)), width), elements=numbers))
    bad = draw(arrays(np.float32, (draw(st.integers(0, f)), width), elements=wild))
    return honest, bad, f


def mixed(honest: Rows, bad: Rows, chance: random.Random) -> Rows:
    n = len(honest) + len(bad)
    return np.concatenate([honest, bad])[chance.sample(range(n), n)]


# -- Yin et al. 2018 -------------------------------------------------------------------------------------------


def test_each_coordinate_of_the_median_is_the_usual_median_of_that_coordinate() -> None:
    """Definition 1: the median need not be one of the vectors."""
    rows = np.array([[1, 30, 200], [2, 10, 300], [3, 20, 100]], np.float32)
    assert combined(by("median"), rows).tolist() == [2, 20, 200]


def test_the_trimmed_mean_removes_the_largest_and_the_smallest_share_of_each_coordinate() -> None:
    """Definition 2: of m values the largest and the smallest beta m are removed, the others averaged."""
    rows = np.array([[0, 9], [1, 8], [4, 5], [7, 2], [9, 0], [900, -900]], np.float32)
    assert combined(by("trimmed_mean", 1), rows).tolist() == [21 / 4, 15 / 4]
    assert combined(by("trimmed_mean", 2), rows).tolist() == [11 / 2, 7 / 2]
    assert combined(by("trimmed_mean", 0), rows[:5]).tolist() == combined(by("mean"), rows[:5]).tolist()


@given(st.sampled_from(["median", "trimmed_mean"]), attacks(), st.randoms())
def test_a_minority_cannot_move_a_coordinate_out_of_the_honest_range(
    rule: str, attack: Attack, chance: random.Random
) -> None:
    """The basis of their theorems: alpha < 1/2 for the median, alpha <= beta < 1/2 for the trimmed mean."""
    honest, bad, f = attack
    got = combined(by(rule, f), mixed(honest, bad, chance))
    assert (honest.min(axis=0) <= got).all()
    assert (got <= honest.max(axis=0)).all()


@pytest.mark.parametrize(("rule", "constant"), [("median", 2.0), ("trimmed_mean", 3.0)])
@pytest.mark.parametrize("shift", [0.5, 3.0, 1e30])
def test_the_error_is_of_the_order_of_alpha_plus_one_over_the_root_of_m(
    rule: str, constant: float, shift: float
) -> None:
    """Theorems 1 and 4: with a share alpha of m workers malicious, the error in one dimension is of the order
    sigma (alpha + 1 / sqrt(m)), where sigma is the deviation of one worker, whatever the malicious ones send."""
    m, dimensions = 100, 400
    for bad in (0, 5, 10, 20):
        rows = np.random.default_rng(bad).normal(size=(m, dimensions)).astype(np.float32)
        rows[:bad] = shift
        error = sqrt(float((combined(by(rule, bad), rows).astype(np.float64) ** 2).mean()))
        assert error <= constant * (bad / m + 1 / sqrt(m))


# -- Blanchard et al. 2017 -------------------------------------------------------------------------------------


def test_one_bad_model_alone_decides_what_a_mean_is_but_not_what_krum_is() -> None:
    """Lemma 1: one Byzantine worker can turn any linear combination into any vector U."""
    honest = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    wish = np.array([50, -50, 0, 7], np.float32)
    rows = np.concatenate([honest, [7 * wish - honest.sum(axis=0)]]).astype(np.float32)
    np.testing.assert_allclose(combined(by("mean"), rows), wish, atol=1e-4)
    assert any(np.array_equal(combined(by("krum"), rows), one) for one in honest)


def test_the_score_is_the_sum_of_the_squared_distances_to_the_closest_n_f_2() -> None:
    """Section 4. On a line, n = 7 and f = 2: the 3 closest. Scores: 0: 14, 1: 6, 2: 6, 3: 14, and far worse."""
    rows = np.array([[0], [100], [3], [2], [-100], [1], [50]], np.float32)
    assert combined(by("krum", 2), rows).tolist() == [2]  # before 1, which has the same score
    assert combined(by("krum", 2), rows[[0, 5, 3, 1, 2, 4, 6]]).tolist() == [1]


def test_of_equal_scores_the_smallest_identifier_wins() -> None:
    """Section 4, the footnote on ties. Here: the position among the models; our own is first."""
    rows = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [9, 9]], np.float32)
    assert combined(by("krum", 1), rows).tolist() == [1, 1]
    assert combined(by("krum", 1), rows[[3, 0, 1, 2, 4]]).tolist() == [0, 0]


def test_two_who_collude_do_not_pull_krum_away() -> None:
    """Why the score counts the closest only: with all others, one distant Byzantine worker would move the
    barycentre, and a second one at the new barycentre would be chosen."""
    honest = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    far = np.full((1, 3), 400, np.float32)
    second = (honest.sum(axis=0, keepdims=True) + far) / 9
    rows = np.concatenate([honest, far, second]).astype(np.float32)
    to_all = (norms(rows[:, None] - rows[None]) ** 2).sum(axis=1)
    assert int(to_all.argmin()) == 9
    assert any(np.array_equal(combined(by("krum", 2), rows), one) for one in honest)


def test_krum_points_where_the_honest_point() -> None:
    """Proposition 1: if 2 f + 2 < n, the expected answer is within eta(n, f) sqrt(d) sigma of the honest
    expectation, whatever the f others send: zeros, the opposite, almost the expectation, huge values."""
    n, f, d, sigma = 11, 3, 10, 0.1
    eta = sqrt(2 * (n - f + (f * (n - f - 2) + f**2 * (n - f - 1)) / (n - 2 * f - 2)))
    goal = np.ones(d)
    for sent in (0 * goal, -20 * goal, goal + 0.5 * sigma, 1e30 * goal):
        answers = []
        for draw in range(40):
            rows = np.random.default_rng(draw).normal(goal, sigma, size=(n, d)).astype(np.float32)
            rows[draw % (n - f) :][:f] = sent
            answers.append(combined(by("krum", f), rows).astype(np.float64))
        assert norms(np.mean(answers, axis=0) - goal) <= eta * sqrt(d) * sigma
        assert norms(np.mean(answers, axis=0) - goal) <= 2 * sqrt(d) * sigma  # far better than promised


@given(st.sampled_from(["krum", "multi_krum"]), attacks(), st.randoms())
def test_krum_stays_near_honest_models(rule: str, attack: Attack, chance: random.Random) -> None:
    """The proof of Proposition 1: one of the neighbours in the winner's score is honest, and honest scores are at
    most n times the squared honest spread. The models that Multi-Krum keeps have no worse scores."""
    honest, bad, f = attack
    rows = mixed(honest, bad, chance)
    reach = sqrt(len(rows)) * spread(honest) * (1 if rule == "krum" else 2)
    away = norms(honest - combined(by(rule, f), rows).astype(np.float64)).min()
    assert away <= reach * (1 + 1e-6) + 1e-4


def test_multi_krum_is_the_mean_of_those_with_the_best_scores() -> None:
    """The m best are averaged; m = 1 is Krum and m = n the mean. Here m = n - f."""
    rows = np.array([[0], [100], [3], [2], [-100], [1], [6]], np.float32)
    assert combined(by("multi_krum", 2), rows).tolist() == [pytest.approx(12 / 5)]
    assert combined(by("multi_krum", 0), rows).tolist() == combined(by("mean"), rows).tolist()


# -- He, Karimireddy, Jaggi 2022 -------------------------------------------------------------------------------


def test_every_neighbour_is_clipped_around_my_own_model() -> None:
    """x_i becomes the sum over j of W_ij (x_i + clip(x_j - x_i, tau)), with clip(z, tau) = min(1, tau / |z|) z."""
    rows = np.array([[1, 1], [4, 5], [1, 2], [-99, 1]], np.float32)  # 5, 1 and 100 away
    got = combined(by("clipping", clip=2.5), rows, weights=[2, 1, 1], own=4)
    np.testing.assert_allclose(got, [1 + (2 * 1.5 - 2.5) / 8, 1 + (2 * 2 + 1) / 8], rtol=1e-6)


@given(arrays(np.float32, (6, 3), elements=numbers), st.lists(wild, min_size=3, max_size=3), st.floats(0.1, 50))
def test_what_one_neighbour_sends_changes_at_most_twice_its_share_of_tau(
    rows: Rows, sent: list[float], tau: float
) -> None:
    """Robustness: a clipped model is within tau of ours, and its influence is limited by its weight."""
    other = rows.copy()
    other[3] = sent
    settings = by("clipping", clip=tau)
    change = combined(settings, rows).astype(np.float64) - combined(settings, other)
    assert norms(change) <= 2 * tau / 6 * (1 + 1e-5) + 1e-4


def rounds(settings: AggregateSettings, graph: dict[int, list[int]], rows: Rows, bad: Rows, n: int) -> Rows:
    """Run n rounds in which each node combines its row, its neighbours' and those of the malicious nodes."""
    for _ in range(n):
        rows = np.array(
            [combined(settings, np.concatenate([rows[[me, *near]], bad])) for me, near in sorted(graph.items())]
        )
    return rows


NOBODY = np.empty((0, 1), np.float32)
DUMBBELL = {me: [p for p in range(10) if p != me and (p // 5 == me // 5 or {p, me} == {4, 5})] for me in range(10)}


TWO_MINDS = np.repeat(np.array([[1.0], [-1.0]], np.float32), 5, axis=0)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum"])
def test_rules_that_drop_whoever_is_different_never_agree_over_a_bottleneck(rule: str) -> None:
    """A dumbbell: two cliques with different data, joined by one edge, without any attacker."""
    assert np.array_equal(rounds(by(rule), DUMBBELL, TWO_MINDS, NOBODY, 20), TWO_MINDS)


def test_clipping_agrees_over_a_bottleneck() -> None:
    """The same dumbbell: a clipped difference still has the right direction."""
    after = rounds(by("clipping", clip=0.5), DUMBBELL, TWO_MINDS, NOBODY, 150)
    assert spread(after) < 0.05
    np.testing.assert_allclose(after.mean(), 0.0, atol=1e-3)


EVERYBODY = {me: [p for p in range(9) if p != me] for me in range(9)}


@pytest.mark.parametrize("sent", [3.0, 1e3, 1e30])
def test_the_honest_agree_near_their_mean_while_a_bad_one_talks_to_all(sent: float) -> None:
    """The consensus theorem: the error is small if few are malicious. The error of the mean is unbounded."""
    start = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    bad = np.full((1, 1), sent, np.float32)
    after = rounds(by("clipping", 1), EVERYBODY, start, bad, 30)
    assert spread(after) < 1e-3
    assert abs(float(after.mean())) < 0.5
    assert rounds(by("mean"), EVERYBODY, start, bad, 30).mean() > 0.9 * sent


# -- Gaucher, Dieuleveut, Hendrikx 2025 ------------------------------------------------------------------------


def test_without_a_radius_the_largest_2b_are_clipped_to_the_next_one() -> None:
    """The practical rule CS+: for b bad neighbours the 2 b largest differences are clipped."""
    rows = np.array([[0], [6], [-1], [3], [50], [2]], np.float32)
    assert combined(by("clipping", 1), rows).tolist() == [pytest.approx((3 - 1 + 3 + 3 + 2) / 6)]
    assert combined(by("clipping", 2), rows).tolist() == [pytest.approx((1 - 1 + 1 + 1 + 1) / 6)]
    assert combined(by("clipping", 0), rows).tolist() == combined(by("mean"), rows).tolist()


@given(attacks())
def test_without_a_radius_nobody_is_moved_further_than_to_the_furthest_honest_model(attack: Attack) -> None:
    honest, bad, f = attack
    got = combined(by("clipping", f), np.concatenate([honest, bad]))
    furthest = norms(honest.astype(np.float64) - honest[0]).max()
    assert norms(got.astype(np.float64) - honest[0]) <= furthest * (1 + 1e-6) + 1e-4
