"""Exact sampling of Laplace noise on integers, so that no floating-point rounding reveals the original value.

Based on Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", section 5.2.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random


def laplace(rate: Fraction, chance: Random) -> int:
    """An integer z with probability proportional to exp(-rate * |z|)."""
    while True:
        size = _geometric(rate, chance)
        minus = chance.randrange(2)
        if size or not minus:  # otherwise zero would be drawn twice as often
            return -size if minus else size


def _geometric(rate: Fraction, chance: Random) -> int:
    """n >= 0 with probability proportional to exp(-rate * n)."""
    t = rate.denominator
    while True:
        u = chance.randrange(t)
        if _survives(u, t, chance):
            break
    whole = 0
    while _survives(1, 1, chance):
        whole += 1
    return (whole * t + u) // rate.numerator


def _survives(numerator: int, denominator: int, chance: Random) -> bool:
    """True with probability exp(-numerator / denominator), where the quotient is at most 1."""
    k = 1
    while chance.randrange(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
