"""Which models are not merged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.protocol.guard import gate
from pfl_node.steps import Average
from pfl_node.types import Eval
from tests.toy import LAYOUT, constant

NAN = float("nan")


def evals(*losses: float) -> list[Eval]:
    return [Eval(loss, 0.5, 10) for loss in losses]


def test_a_model_that_throws_away_more_than_the_share_of_what_i_learnt_is_refused() -> None:
    assert gate.refused(evals(0.3, 0.2, 1.2, 1.4, 9.0, NAN, float("inf")), untrained=2.3, tolerance=0.5) == [
        2,
        3,
        4,
        5,
    ]


def test_one_who_has_learnt_little_is_mild() -> None:
    assert gate.refused(evals(2.3, 2.4, 90.0), untrained=2.3, tolerance=1.0) == [1]
    assert gate.refused(evals(9.0, 8.0, 90.0), untrained=2.3, tolerance=1.0) == [1]


def test_a_head_that_i_do_not_use_judges_nobody() -> None:
    assert gate.refused(evals(2.5, 90.0), untrained=2.3, tolerance=0.5, part="head") == []
    assert gate.refused(evals(0.5, 90.0), untrained=2.3, tolerance=0.5, part="head") == [0]
    assert gate.refused(evals(NAN, 90.0), untrained=2.3, tolerance=0.5) == []


def test_a_core_and_a_head_are_completed_with_mine() -> None:
    whole, other = constant(1.0), constant(5.0)
    cores = gate.completed(Average(whole.core, [other.core]), whole)
    heads = gate.completed(Average(whole.head, [other.head]), whole)
    assert cores is not None
    assert heads is not None
    assert [m.vector.tolist() for m in cores] == [[1.0] * 5, [5.0, 5.0, 5.0, 1.0, 1.0]]
    assert [m.vector.tolist() for m in heads] == [[1.0] * 5, [1.0, 1.0, 1.0, 5.0, 5.0]]
    assert gate.completed(Average(whole, [other]), whole) == (whole, other)
    assert all(m.layout == LAYOUT for m in (*cores, *heads))


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9), st.floats(0.5, 5), st.floats(0.1, 3))
def test_what_is_no_worse_than_mine_is_never_refused_and_worse_ones_in_order(
    losses: list[float], untrained: float, tolerance: float
) -> None:
    refused = gate.refused(evals(*losses), untrained, tolerance)
    mine, *theirs = losses
    assert all(theirs[i] > mine for i in refused)
    if refused:
        worst_kept = max((loss for i, loss in enumerate(theirs) if i not in refused), default=0.0)
        assert worst_kept <= min(theirs[i] for i in refused)


@given(st.lists(st.booleans(), max_size=6), st.booleans())
def test_the_weights_go_with_their_models(gone: list[bool], weighted: bool) -> None:
    others = [constant(float(i)) for i in range(len(gone))]
    step = Average(constant(9.0), others, [float(i) for i in range(len(gone))] if weighted else None, own=0.5)
    left = gate.without(step, [i for i, out in enumerate(gone) if out])
    kept = [float(i) for i, out in enumerate(gone) if not out]
    assert [float(np.mean(m.vector)) for m in left.others] == kept
    assert left.weights == (kept if weighted else None)
    assert (left.mine, left.own) == (step.mine, 0.5)
