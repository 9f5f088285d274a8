"""`epsilon_greedy` against Karlsson & Onoszko 2021: Algorithm 3 and table 3.2. Each test quotes its source."""

from __future__ import annotations

from collections import Counter
from math import comb
from typing import Any

import pytest

from pfl_node.policies.epsilon_greedy import EpsilonGreedy
from pfl_node.policies.greedy import Greedy
from pfl_node.steps import Ask, Fetch, Report
from pfl_node.types import PeerId
from tests.drive_policy import Run, make
from tests.pull_swarm import among, peers

ALL = peers(20)
BEST = ALL[16:]  # p016..p019: the higher the number, the better my model does there


def test_the_default_is_4_of_20_with_one_of_the_pairs_that_were_tried() -> None:
    """Table 3.2: (eps, lambda) in {(0.2, 1), (0.5, 1), (1, 0.99)}."""
    cfg = make(EpsilonGreedy).cfg
    assert (cfg.m_selected, cfg.m_sample) == (4, 20)
    assert (cfg.eps, cfg.decay) in {(0.2, 1.0), (0.5, 1.0), (1.0, 0.99)}


def test_without_epsilon_it_is_greedy() -> None:
    """Lines 9-15 are those of Algorithm 2."""
    assert EpsilonGreedy.greedily is Greedy.greedily
    assert {frozenset(s) for s in selections(20, eps=0)} == {frozenset(BEST)}


def test_how_many_of_the_best_are_missing_follows_the_binomial_and_the_draw_of_the_new() -> None:
    """Lines 16-20."""
    n, expected = 2000, gone(0.5)
    found = Counter(len(set(BEST) - set(s)) for s in selections(n, eps=0.5))
    chi_square = sum((found[k] - n * p) ** 2 / (n * p) for k, p in enumerate(expected))
    assert sum(expected) == pytest.approx(1)
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in a thousand


def test_the_swap_count_is_binomial() -> None:
    """Line 16, with one peer more than selected, which is swapped in with probability n_swap / (n_swap + 1)."""
    eps, m, n = 0.3, 5, 2000
    expected = sum(binomial(m, eps, k) * k / (k + 1) for k in range(m + 1))
    chosen = selections(n, eps=eps, m_selected=m, m_sample=6, others=ALL[:6])
    assert sum(ALL[0] in s for s in chosen) / n == pytest.approx(expected, abs=0.035)


def test_epsilon_1_swaps_all_which_is_a_uniform_choice_among_those_sampled() -> None:
    """Lines 17-20 with n_swap = m_selected: the new population is the whole sample."""
    n = 2000
    counts = Counter(p for s in selections(n, eps=1) for p in s)
    assert all(counts[p] == pytest.approx(n * 4 / 20, rel=0.25) for p in ALL)


def test_the_swapped_are_random_ones_of_the_selected() -> None:
    """Line 17: each of the best is equally likely to be swapped out."""
    n = 2000
    counts = Counter(p for s in selections(n, eps=0.5) for p in set(BEST) - set(s))
    mean = sum(counts.values()) / 4
    assert all(counts[p] == pytest.approx(mean, rel=0.15) for p in BEST)


def test_as_many_as_before_are_selected_and_nobody_twice() -> None:
    """Line 20."""
    assert {(len(s), len(set(s))) for s in selections(500, eps=0.7)} == {(4, 4)}


@pytest.mark.parametrize(("t", "p"), [(1, 0.5), (2, 0.25), (4, 0.0625)])
def test_lambda_to_the_t_makes_swaps_rarer_from_round_1_on(t: int, p: float) -> None:
    """Lines 3 and 16: lambda^t * eps, t = 1, 2, ..."""
    n = 1000
    missing = sum(len(set(BEST) - set(s)) for s in selections(n, t=t, eps=1, decay=0.5))
    assert missing / n == pytest.approx(sum(k * share for k, share in enumerate(gone(p))), abs=0.12)


def test_only_those_sampled_come_in() -> None:
    """Line 18."""
    hand = among(dict.fromkeys(ALL, 0.0), dict.fromkeys(ALL, 0.5))
    run = Run(make(EpsilonGreedy, rounds=None, m_sample=6, m_selected=2, eps=1).main(), hand)
    for _ in range(50):
        run.past(Report)
    for ask, fetch in zip(hand.all(Ask), hand.all(Fetch), strict=True):
        assert set(fetch.peers) <= set(ask.peers)


def binomial(m: int, p: float, k: int) -> float:
    return comb(m, k) * p**k * (1 - p) ** (m - k)


def gone(eps: float) -> list[float]:
    """The probabilities that 0..4 of the best 4 of 20 are missing in the end. The n_swap new ones are drawn from
    the 16 others and the swapped ones, so the number drawn again is hypergeometric."""
    shares = [0.0] * 5
    for n_swap in range(5):
        for back in range(n_swap + 1):
            again = comb(n_swap, back) * comb(16, n_swap - back) / comb(16 + n_swap, n_swap)
            shares[n_swap - back] += binomial(4, eps, n_swap) * again
    return shares


def selections(n: int, others: list[PeerId] = ALL, t: int = 1, **options: Any) -> list[list[PeerId]]:
    """The selections of n trials of round t."""
    policy = make(EpsilonGreedy, rounds=None, **options)
    policy.round = t - 1
    hand = among({}, {p: i / 20 for i, p in enumerate(others)}, also=others)
    for _ in range(n):
        hand.run(selecting(policy))
    return [list(f.peers) for f in hand.all(Fetch)]


async def selecting(policy: EpsilonGreedy) -> None:
    await policy.average(await policy.select())
