"""Which models are far outside of what peers send."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.guard.outliers import Usual, bound, length
from pfl_node.model import Model
from pfl_node.types import PeerId
from tests.toy import LAYOUT, constant

MINE = constant(1.0)


def model(*numbers: float) -> Model:
    return Model(LAYOUT, np.array(numbers, np.float32))


def usual(*values: float, mads: float = 6.0) -> Usual:
    made = Usual(mads, least=4)
    for i, value in enumerate(values):
        made.judge(PeerId(f"p{i}"), constant(value), MINE)
    return made


HONEST = (0.9, 1.0, 1.1, 1.2, 0.8)


@pytest.mark.parametrize(
    ("sent", "what"), [(10.0, "norm"), (-1.0, "distance from mine"), (1e30, "norm"), (1.15, None), (0.7, None)]
)
def test_what_is_far_outside_is_told_with_its_figure(sent: float, what: str | None) -> None:
    found = usual(*HONEST).judge(PeerId("x"), constant(sent), constant(1.05))
    assert (found.what if found else None) == what


def test_before_enough_others_are_known_nobody_is_an_outlier() -> None:
    assert usual(0.9, 1.0, 1.1).judge(PeerId("x"), constant(1e9), MINE) is None
    assert usual(0.9, 1.0, 1.1, 1.2).judge(PeerId("p0"), constant(1e9), MINE) is None  # itself does not count


def test_one_peer_has_one_voice_however_much_it_sends() -> None:
    made = usual(*HONEST)
    for _ in range(100):
        assert made.judge(PeerId("x"), constant(50.0), MINE)
    assert made.judge(PeerId("p0"), constant(0.9), MINE) is None


def test_where_most_have_changed_it_follows() -> None:
    made = usual(*HONEST)
    for i in range(5):
        made.judge(PeerId(f"p{i}"), constant(30.0 + i), MINE)
    assert made.judge(PeerId("x"), constant(33.0), MINE) is None


def test_parts_are_compared_with_their_own_kind() -> None:
    made = usual(*HONEST)
    assert made.judge(PeerId("x"), constant(90.0).head, MINE.head) is None


def test_a_copy_judges_alike() -> None:
    copy = Usual(6.0, 4)
    copy.load(usual(*HONEST).dump())
    assert copy.judge(PeerId("x"), constant(10.0), MINE)


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=20), st.floats(0.1, 20))
def test_less_than_half_of_the_figures_cannot_move_the_bound_beyond_the_others(
    honest: list[float], mads: float
) -> None:
    bad = [float("inf")] * ((len(honest) - 1) // 2)
    top = max(honest)
    assert bound([*honest, *bad], mads) <= top + max(mads * 1.4826 * top, 0.5 * top) + 1e-6
    assert bound(honest, mads) >= sorted(honest)[len(honest) // 2 - 1]


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=5, max_size=5))
def test_a_length_is_that_of_numpy_and_never_overflows(numbers: list[float]) -> None:
    found = length(model(*numbers).vector)
    assert found == pytest.approx(float(np.linalg.norm(np.array(numbers, np.float64))), rel=1e-6)
    assert length(model(*numbers).vector, model(*numbers).vector) == 0.0
