"""Laplace noise on whole numbers: its distribution."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import exp
from random import Random

import pytest

from pfl_node.protocol.privacy.laplace import laplace

DRAWS = 20_000


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 2), Fraction(3, 7)])
def test_every_number_comes_as_often_as_it_should(rate: Fraction) -> None:
    chance = Random(7)
    counts = Counter(laplace(rate, chance) for _ in range(DRAWS))
    whole = (1 + exp(-rate)) / (1 - exp(-rate))  # the sum of exp(-rate * |z|) over all z
    for z in range(-4, 5):
        expected = DRAWS * exp(-rate * abs(z)) / whole
        assert abs(counts[z] - expected) < 5 * expected**0.5, z


def test_fine_noise_has_no_drift_and_the_spread_of_its_scale() -> None:
    chance, scale = Random(1), 1000
    drawn = [laplace(Fraction(1, scale), chance) for _ in range(DRAWS // 4)]
    assert abs(sum(drawn) / len(drawn)) < 5 * (2 * scale**2 / len(drawn)) ** 0.5
    assert abs(sum(map(abs, drawn)) / len(drawn) / scale - 1) < 5 / len(drawn) ** 0.5


def test_the_same_chance_gives_the_same_noise() -> None:
    drawn = [[laplace(Fraction(1, 65536), chance) for _ in range(10)] for chance in (Random(3), Random(3))]
    assert drawn[0] == drawn[1]
