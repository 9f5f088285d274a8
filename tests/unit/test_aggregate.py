from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pfl_node.aggregate import BLOCK, mean
from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model
from tests.byhand import LAYOUT, model

numbers = st.floats(-100, 100, width=32)


def flat(rows: np.ndarray) -> list[Model]:
    layout = Layout((Entry("w", (rows.shape[1],)),), ())
    return [Model(layout, np.ascontiguousarray(row)) for row in rows]


@given(arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 40)), elements=numbers))
def test_one_pass_equals_numpys_mean(rows: np.ndarray) -> None:
    np.testing.assert_allclose(mean(flat(rows)).vector, rows.mean(axis=0), rtol=1e-6, atol=1e-4)


@given(
    st.lists(st.tuples(numbers, st.floats(0, 10)), min_size=1, max_size=8).filter(
        lambda p: sum(w for _, w in p) > 0.1
    )
)
def test_weights_are_shares_of_their_sum(pairs: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    expected = np.average(values, weights=weights)
    got = mean([model(v) for v in values], weights).vector
    np.testing.assert_allclose(got, np.full(3, expected), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_it_is_exact_to_a_millionth_whatever_the_size(size: int) -> None:
    rows = np.random.default_rng(0).normal(size=(20, size)).astype(np.float32)
    np.testing.assert_allclose(mean(flat(rows)).vector, rows.mean(axis=0, dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_model_that_is_not_finite_is_left_out_and_the_weights_with_it(bad: float) -> None:
    assert mean([model(1), model(bad), model(3)]) == model(2)
    assert mean([model(1), model(bad, 0), model(5)], [3, 100, 1]) == model(2)


def test_if_nothing_finite_is_left_that_is_an_error() -> None:
    for models, weights in (([], None), ([model(nan)], None), ([model(1), model(nan)], [0, 1])):
        with pytest.raises(ValueError, match="nothing to average"):
            mean(models, weights)


def test_the_mean_of_one_is_itself() -> None:
    only = model(4)
    assert mean([only]) is only
    assert mean([only, model(nan)]) is only


def test_the_inputs_stay_as_they_are() -> None:
    one, other = model(1), model(3)
    mean([one, other])
    assert (one, other) == (model(1), model(3))


def test_cores_and_heads_are_averaged_like_models() -> None:
    assert mean([model(1, 5).head, model(1, 7).head]) == model(0, 6).head
    assert mean([model(1, 5).core, model(3, 7).core]) == model(2, 0).core


def test_the_largest_numbers_do_not_overflow() -> None:
    big = float(np.finfo(np.float32).max)
    assert mean([model(big), model(big)]) == model(big)


def test_models_of_different_layouts_are_not_averaged() -> None:
    stranger = Model(Layout(LAYOUT.core_entries, (Entry("other", (1,)),)), model(1).vector)
    for odd in (stranger, model(1).core):
        with pytest.raises(LayoutMismatch, match="different layouts"):
            mean([model(1), odd])


@pytest.mark.parametrize(
    ("weights", "text"),
    [([1.0], "2 models but 1 weights"), ([1.0, -1.0], "weight"), ([1.0, nan], "weight"), ([1.0, inf], "weight")],
)
def test_weights_that_make_no_sense_are_errors(weights: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mean([model(1), model(2)], weights)
