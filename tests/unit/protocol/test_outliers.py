"""Which models are far outside of what peers send, and what of that counts against their senders."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.model import Entry, Layout, Model
from pfl_node.protocol.guard.outliers import PEERS, Figures, TypicalModels, alone, bound, measure
from pfl_node.types import PeerId
from tests.toy import LAYOUT, constant

MINE = constant(1.0)


def model(*numbers: float) -> Model:
    return Model(LAYOUT, np.array(numbers, np.float32))


def usual(*values: float, mads: float = 6.0) -> TypicalModels:
    made = TypicalModels(mads, least=4)
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
    copy = TypicalModels(6.0, 4)
    copy.load(usual(*HONEST).dump())
    assert copy.judge(PeerId("x"), constant(10.0), MINE)


# -- a difference is no offence ----------------------------------------------------------------------------------

WIDE = Layout((Entry("core", (1200,)),), (Entry("head", (20,)),))
sizes = st.lists(st.integers(1, 8), min_size=1, max_size=5)
seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=30)


def trained(clusters: list[int], seed: int, apart: float = 1.0, *, common: bool = True) -> list[Model]:
    """Honest models of clusters of these sizes, that began at one point, or each at its own."""
    chance = np.random.default_rng(seed)
    begin, made = chance.normal(size=WIDE.size), []
    for size in clusters:
        goal = apart * chance.normal(size=WIDE.size)
        for _ in range(size):
            start = begin if common else chance.normal(size=WIDE.size)
            made.append(Model(WIDE, (start + goal + 0.1 * chance.normal(size=WIDE.size)).astype(np.float32)))
    return made


def against(models: list[Model], mine: Model) -> list[float]:
    """What counts against the sender of each, once all have sent one before."""
    usual = TypicalModels(6.0, least=4)
    for _ in range(2):
        found = [usual.judge(PeerId(f"p{i}"), sent, mine) for i, sent in enumerate(models)]
    return [f.weight if f else 0.0 for f in found]


def turned_round(sent: Model, factor: float = -1.0) -> Model:
    return Model(sent.layout, sent.vector * np.float32(factor))


@some
@given(sizes, seeds, st.floats(0, 1.5), st.booleans())
def test_nothing_counts_against_an_honest_peer_of_a_cluster_however_small_and_far(
    clusters: list[int], seed: int, apart: float, common: bool
) -> None:
    mine, *others = trained([*clusters, 1], seed, apart, common=common)
    assert against(others, mine) == [0.0] * len(others)


@some
@given(sizes, st.integers(1, 4), seeds, st.floats(0.5, 20))
def test_of_models_that_are_turned_round_all_count_and_only_they(
    clusters: list[int], bad: int, seed: int, factor: float
) -> None:
    mine, *honest = trained([5 + 3 * bad, *clusters], seed, 0.5)
    flipped = [turned_round(m, -factor) for m in honest[:bad]]
    weights = against([*honest[bad:], *flipped], mine)
    assert not any(weights[:-bad])
    assert all(w > 0.4 for w in weights[-bad:])


@some
@given(seeds, st.integers(5, 11))
def test_where_a_third_is_turned_it_counts_against_nobody(seed: int, turned: int) -> None:
    mine, *honest = trained([12], seed, 0.1)
    flipped = [turned_round(m) for m in honest[:turned]]
    assert not any(against([*honest[turned:], *flipped], mine))


def test_what_is_far_is_refused_and_does_not_count() -> None:
    mine, *others = trained([10, 1], seed=1)
    usual = TypicalModels(6.0, least=4)
    found = [usual.judge(PeerId(f"p{i}"), sent, mine) for i, sent in enumerate(others)]
    assert [f.what if f else None for f in found] == [None] * 9 + ["distance from mine"]
    assert found[-1]
    assert found[-1].weight == 0.0


@pytest.mark.parametrize(("factor", "weight"), [(1.0, None), (2.0, 0.0), (4.0, 0.67), (10.0, 1.0)])
def test_the_larger_a_model_the_more_it_counts_but_twice_as_large_is_only_refused(
    factor: float, weight: float | None
) -> None:
    mine, *others = trained([8], seed=2)
    usual = TypicalModels(6.0, least=4)
    for i, sent in enumerate(others):
        usual.judge(PeerId(f"p{i}"), sent, mine)
    found = usual.judge(PeerId("x"), turned_round(others[0], factor), mine)
    assert (found.weight if found else None) == (weight if weight is None else pytest.approx(weight, abs=0.03))


def test_a_direction_says_nothing_of_a_model_of_few_numbers() -> None:
    found = usual(*HONEST).judge(PeerId("x"), constant(-1.0), MINE)
    assert found
    assert (found.what, found.weight) == ("distance from mine", 0.0)


def test_it_is_said_what_is_wrong() -> None:
    mine, *others = trained([6], seed=3)
    usual = TypicalModels(6.0, least=4)
    for i, sent in enumerate(others):
        usual.judge(PeerId(f"p{i}"), sent, mine)
    found = usual.judge(PeerId("x"), turned_round(mine), mine)
    assert str(found) == "its cosine with mine is -1, the other peers' models have at least -0.2"


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_who_is_one_of_a_third_is_not_alone(alike: list[bool]) -> None:
    assert alone(alike) == (3 * sum(alike) < len(alike))


@some
@given(seeds, st.sampled_from([2, 5, 1000, 70_000]), st.floats(1e-18, 1e18))
def test_figures_are_those_of_numpy_at_any_size_and_scale(seed: int, size: int, scale: float) -> None:
    layout = Layout((Entry("core", (size - 1,)),), (Entry("head", (1,)),))
    chance = np.random.default_rng(seed)
    one, other = (Model(layout, (scale * chance.normal(size=size)).astype(np.float32)) for _ in range(2))
    a, b = one.vector.astype(np.float64), other.vector.astype(np.float64)
    lengths = [float(np.linalg.norm(v)) for v in (a, b, a - b)]
    found = measure(one, other)
    assert (found.norm, found.distance) == pytest.approx((lengths[0], lengths[2]))
    assert found.cosine == pytest.approx(float(a @ b) / lengths[0] / lengths[1], abs=1e-9)
    assert measure(one, one).cosine == pytest.approx(1.0)
    assert measure(one, turned_round(one)).cosine == pytest.approx(-1.0)
    assert measure(one, turned_round(one, 0.0)).cosine == 0.0
    assert measure(one, None) == Figures(found.norm)


def test_vectors_beside_the_model_do_not_displace_the_models_of_other_peers() -> None:
    made = TypicalModels(6.0, least=10)
    for i in range(2 * PEERS):
        for kind in ("", *(f"vector {n}" for n in range(8))):
            assert made.judge(PeerId(f"p{i}"), constant(1.0 + i / 1000), None, kind) is None
    assert made.judge(PeerId("x"), constant(50.0), None)
    assert len(made.dump()) == 9 * PEERS


def test_a_partial_model_is_measured_in_blocks() -> None:
    """A peer could otherwise make a node allocate several times the size of its model."""
    layout = Layout((Entry("core", (n := 1 << 20,)),), ())
    mine = Model(layout, np.random.default_rng(0).standard_normal(n, dtype=np.float32))
    partial = mine.sparse(np.arange(1, n))
    tracemalloc.start()
    found = measure(partial, mine)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.norm == pytest.approx(measure(mine, None).norm)
    assert found.distance == 0.0
    assert peak < mine.nbytes


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=20), st.floats(0.1, 20))
def test_less_than_half_of_the_figures_cannot_move_the_bound_beyond_the_others(
    honest: list[float], mads: float
) -> None:
    bad = [float("inf")] * ((len(honest) - 1) // 2)
    top = max(honest)
    assert bound([*honest, *bad], mads) <= top + max(mads * 1.4826 * top, 0.5 * top) + 1e-6
    assert bound(honest, mads) >= sorted(honest)[len(honest) // 2 - 1]


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=5, max_size=5))
def test_a_norm_is_that_of_numpy_and_never_overflows(numbers: list[float]) -> None:
    found = measure(model(*numbers), model(*numbers))
    assert found.norm == pytest.approx(float(np.linalg.norm(np.array(numbers, np.float64))), rel=1e-6)
    assert found.distance == 0.0
    assert found.cosine is not None
    assert -1 <= found.cosine <= 1
