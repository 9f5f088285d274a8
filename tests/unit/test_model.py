from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model

names = st.text("abcxyz.", min_size=1, max_size=6)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
entries = st.lists(st.builds(Entry, names, shapes, st.booleans()), max_size=4).map(tuple)
layouts = st.builds(Layout, entries, entries)

TINY = Layout((Entry("w", (2, 2)), Entry("stat", (2,), trained=False)), (Entry("out", (3,)),))


def vector(layout: Layout) -> Model:
    return Model(layout, np.arange(layout.size, dtype=np.float32))


@given(layouts)
def test_core_and_head_put_together_are_the_model_again(layout: Layout) -> None:
    model = vector(layout)
    assert model.core + model.head == model


@given(layouts)
def test_core_and_head_are_slices_that_share_the_vectors_memory(layout: Layout) -> None:
    model = vector(layout)
    assert model.core.vector.size + model.head.vector.size == layout.size
    for part in (model.core, model.head):
        assert part.vector.size == 0 or np.shares_memory(part.vector, model.vector)


@given(layouts)
def test_the_spans_cover_the_vector_without_gaps(layout: Layout) -> None:
    places = [place for _, place in layout.spans()]
    assert [p.start for p in places[:1]] == [0] * len(places[:1])
    assert all(a.stop == b.start for a, b in pairwise(places))
    assert sum(p.stop - p.start for p in places) == layout.size == layout.nbytes // 4
    assert layout.core_size == layout.core.size


@given(layouts, layouts)
def test_layouts_are_equal_exactly_when_their_entries_are(one: Layout, other: Layout) -> None:
    same = (one.core_entries, one.head_entries) == (other.core_entries, other.head_entries)
    assert (one == other) is same
    assert (one.digest == other.digest) is same
    assert not same or hash(one) == hash(other)


@pytest.mark.parametrize(
    "other",
    [
        Layout(TINY.core_entries[:1], (*TINY.core_entries[1:], *TINY.head_entries)),  # the head begins earlier
        Layout((Entry("v", (2, 2)), TINY.core_entries[1]), TINY.head_entries),  # another name
        Layout((Entry("w", (4,)), TINY.core_entries[1]), TINY.head_entries),  # another shape of the same size
        Layout((TINY.core_entries[0], Entry("stat", (2,))), TINY.head_entries),  # trained, not a buffer
    ],
)
def test_a_layout_differs_by_any_detail(other: Layout) -> None:
    assert other.size == TINY.size
    assert other != TINY


def test_the_digest_does_not_change_between_versions() -> None:
    assert TINY.digest == "42422533f3a990b63cb4a77ac7b36a38"


def test_a_part_knows_what_it_is() -> None:
    assert TINY.of("model") is TINY
    assert TINY.of("core").part == "core"
    assert TINY.core != TINY.head
    assert vector(TINY).of("head") == vector(TINY).head
    assert repr(vector(TINY).head).startswith("Model(head, 3 numbers")


def test_a_model_cannot_be_changed() -> None:
    model = vector(TINY)
    with pytest.raises(ValueError, match="read-only"):
        model.vector[0] = 5
    with pytest.raises(AttributeError, match="immutable"):
        model.vector = np.zeros(9, np.float32)


def test_making_a_model_does_not_lock_the_callers_array() -> None:
    mine = np.zeros(TINY.size, np.float32)
    Model(TINY, mine)
    mine[0] = 1


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(8, np.float32),
        np.zeros(10, np.float32),
        np.zeros(9, np.float64),
        np.zeros((3, 3), np.float32),
    ],
)
def test_a_vector_that_does_not_fit_the_layout_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(LayoutMismatch, match="holds 9 float32"):
        Model(TINY, bad)


def test_only_a_core_and_a_head_of_the_same_layout_go_together() -> None:
    model, stranger = vector(TINY), vector(Layout(TINY.core_entries, (Entry("out", (4,)),)))
    for left, right in ((model, model.head), (model.head, model.core), (model.core, stranger.head)):
        with pytest.raises(LayoutMismatch, match="cannot join"):
            left + right


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_noticed(bad: float) -> None:
    numbers = np.zeros(TINY.size, np.float32)
    assert Model(TINY, numbers.copy()).is_finite()
    numbers[4] = bad
    assert not Model(TINY, numbers).is_finite()


def test_infinities_of_both_signs_are_noticed_without_a_warning() -> None:
    numbers = np.array([np.inf, -np.inf, 0, 0, 0, 0, 0, 0, 0], np.float32)
    assert not Model(TINY, numbers).is_finite()


def test_the_largest_numbers_are_finite() -> None:
    assert Model(TINY, np.full(TINY.size, np.finfo(np.float32).max)).is_finite()


def test_models_are_equal_by_value_and_have_no_hash() -> None:
    assert vector(TINY) == vector(TINY)
    assert vector(TINY) != Model(TINY, np.zeros(9, np.float32))
    assert vector(TINY) != "a model"
    with pytest.raises(TypeError):
        hash(vector(TINY))


def test_places_in_any_order_become_ascending() -> None:
    model = vector(TINY)
    assert model.sparse([7, 2, 2, 0]).indices.tolist() == [0, 2, 7]
    assert model.sparse([]).indices.tolist() == []
    with pytest.raises(LayoutMismatch):
        model.sparse([3, 9])


def test_places_that_are_ascending_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices of a large model are cut on the event loop, anew for each peer."""
    monkeypatch.setattr(np, "unique", lambda _: pytest.fail("sorted"))
    assert vector(TINY).fragment(0, 2, of=3).indices.tolist() == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("bad", [[True] * 9, np.ones(9, bool), [0.5], np.array([1.0])])
def test_places_are_whole_numbers_and_not_a_mask(bad: object) -> None:
    for model in (vector(TINY), vector(TINY).sparse([0, 1])):
        with pytest.raises(LayoutMismatch, match=r"places are whole numbers, not .*: np\.flatnonzero\(mask\)"):
            model.sparse(bad)  # type: ignore[arg-type]
    assert vector(TINY).sparse(()).numbers.size == 0


@pytest.mark.parametrize("which", [-1, 3])
def test_a_slice_that_does_not_exist_is_refused(which: int) -> None:
    with pytest.raises(LayoutMismatch, match=f"a model in 3 slices has no slice {which}: they are counted from 0"):
        vector(TINY).fragment(0, which, of=3)


def test_a_multiple_of_another_model_is_added() -> None:
    found = vector(TINY).plus(vector(TINY), -0.5)
    assert found.vector.tolist() == [i / 2 for i in range(TINY.size)]
    assert found.vector.dtype == np.float32


def test_the_trained_numbers_alone_are_those_of_parameters() -> None:
    layout = Layout((Entry("w", (2,)), Entry("mean", (3,), False)), (Entry("out", (2,)), Entry("var", (), False)))
    model = Model(layout, np.ones(8, np.float32))
    assert model.trained_only().vector.tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    assert model.head.trained_only().vector.tolist() == [1, 1, 0]
    assert model.vector.all()


@given(layouts)
def test_each_buffer_is_a_stretch_and_so_are_trained_tensors_in_a_row(layout: Layout) -> None:
    starts = (0, *layout.bounds)
    assert starts == tuple(sorted(set(starts)))
    assert starts[-1] == layout.size
    for entry, span in layout.spans():
        inside = [bound for bound in layout.bounds if span.start < bound < span.stop]
        assert not inside
        assert entry.trained or {span.start, span.stop} <= set(starts)
    if all(entry.trained for entry in layout.entries):
        assert len(layout.bounds) <= 1


def test_models_of_different_layouts_are_not_added() -> None:
    other = Layout((Entry("v", (TINY.size,)),), ())
    with pytest.raises(LayoutMismatch, match=r"cannot add .*: they have different layouts"):
        vector(TINY).plus(vector(other))
