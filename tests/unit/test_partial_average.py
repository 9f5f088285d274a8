"""Averages with partial models, and what the guard sees of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pfl_node.aggregate import combine
from pfl_node.errors import LayoutMismatch, Refused
from pfl_node.model import Entry, Layout, Model, PartialModel
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.guard.outliers import measure
from pfl_node.settings import AggregateSettings
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Offer, PeerId

LAYOUT = Layout((Entry("core", (4,)),), (Entry("head", (2,)),))
MEAN = AggregateSettings()


def of(*numbers: float) -> Model:
    return Model(LAYOUT, np.array(numbers, np.float32))


ZERO, NINE = of(0, 0, 0, 0, 0, 0), of(9, 9, 9, 9, 9, 9)


def test_numbers_that_changed_little_count_as_mine() -> None:
    found = combine(MEAN, ZERO, [NINE.sparse([0, 5]), NINE])
    assert found.vector.tolist() == [6, 3, 3, 3, 3, 6]


def test_numbers_that_a_fragment_omits_do_not_count() -> None:
    found = combine(MEAN, ZERO, [NINE.fragment(0, of=3), of(3, 3, 3, 3, 3, 3).fragment(0, 1, of=3)])
    assert found.vector.tolist() == [4, 4, 1.5, 1.5, 0, 0]
    alone = combine(MEAN, ZERO, [NINE.fragment(0, of=3)], own=0)
    assert alone.vector.tolist() == [9, 9, 0, 0, 0, 0]
    weighted = combine(MEAN, ZERO, [NINE.fragment(0, of=3)], [0.5], own=0.25)
    assert weighted.vector.tolist() == [6, 6, 0, 0, 0, 0]


@pytest.mark.parametrize("same", [True, False])
def test_the_mean_of_large_partial_models_is_taken_in_blocks(same: bool) -> None:
    layout, chance = Layout((Entry("core", (n := 100_000,)),), ()), np.random.default_rng(0)
    mine, *whole = (Model(layout, chance.standard_normal(n, dtype=np.float32)) for _ in range(9))
    others = [m.sparse(np.flatnonzero(chance.random(n) < 0.2), same=same) for m in whole]
    w, own = chance.random(len(others)).tolist(), 0.5
    tracemalloc.start()
    found = combine(MEAN, mine, others, w, own)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    total, weight = own * mine.vector.astype(np.float64), np.full(n, own)
    for model, share in zip(others, w, strict=True):
        known = np.ones(n) if same else np.isin(np.arange(n), model.indices)
        total += share * known * model.over(mine).vector
        weight += share * known
    np.testing.assert_allclose(found.vector, total / weight, rtol=1e-5, atol=1e-6)
    assert peak < 6 * mine.nbytes


def by(rule: str, byzantine: int = 1, clip: float | None = None) -> AggregateSettings:
    return AggregateSettings.model_validate({"rule": rule, "byzantine": byzantine, "clip": clip})


@pytest.mark.parametrize(
    ("rule", "same"),
    [("median", True), ("trimmed_mean", True), ("clipping", True), ("krum", True), ("krum", False),
     ("multi_krum", True), ("multi_krum", False)],
)  # fmt: skip
def test_other_rules_see_a_completed_model(rule: str, same: bool) -> None:
    how = by(rule)
    partial, others = NINE.sparse([1], same=same), [of(1, 1, 1, 1, 1, 1), of(2, 2, 2, 2, 2, 2)]
    assert combine(how, ZERO, [partial, *others]) == combine(how, ZERO, [partial.over(ZERO), *others])


@pytest.mark.parametrize("same", [True, False])
def test_nothing_completes_a_partial_model_if_mine_is_not_finite(same: bool) -> None:
    broken = of(np.nan, 0, 0, 0, 0, 0)
    assert combine(MEAN, broken, [NINE.sparse([1], same=same), NINE]) == NINE


def test_an_average_with_a_partial_model_of_mine_is_an_error() -> None:
    with pytest.raises(LayoutMismatch, match="complete it"):
        combine(MEAN, ZERO.sparse([1]), [NINE.sparse([0])])
    with pytest.raises(LayoutMismatch, match="cannot be completed"):
        NINE.core.over(ZERO)


def test_a_median_is_over_those_who_sent_a_number_and_mine() -> None:
    """Completed with my numbers, each fragment would be outvoted."""
    others = [NINE.fragment(0, of=3), of(3, 3, 3, 3, 3, 3).fragment(0, 1, of=3)]
    for rule in ("median", "trimmed_mean"):
        completed = combine(by(rule), ZERO, [*others, NINE.sparse([0, 5])])
        assert completed.vector.tolist() == [6, 1.5, 0, 0, 0, 4.5]
        assert combine(by(rule), ZERO, others).vector.tolist() == [3, 3, 1.5, 1.5, 0, 0]
    alone = combine(by("median"), ZERO, [NINE.fragment(0, of=3)], own=0)
    assert alone.vector.tolist() == [9, 9, 0, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("f", [0, 1, 2])
def test_robust_rules_take_large_fragments_number_by_number(n: int, f: int) -> None:
    layout, chance = Layout((Entry("core", (size := 70_000,)),), ()), np.random.default_rng(n)
    mine, *whole = (Model(layout, chance.standard_normal(size, dtype=np.float32)) for _ in range(n + 1))
    others = [m.sparse(np.flatnonzero(chance.random(size) < 0.5), same=False) for m in whole[:-1]] + whole[-1:]
    others[0] = whole[0].fragment(1, of=4)
    rows = np.full((n + 1, size), np.nan)
    rows[0] = mine.vector
    for row, model in zip(rows[1:], others, strict=True):
        row[model.indices if isinstance(model, PartialModel) else slice(None)] = model.numbers
    median = combine(by("median"), mine, others).vector
    np.testing.assert_allclose(median, np.nanmedian(rows, axis=0), rtol=1e-5, atol=1e-6)
    known, columns = np.isfinite(rows).sum(axis=0), np.arange(size)
    total = sorted_sum = np.concatenate((np.zeros((1, size)), np.nan_to_num(np.sort(rows, axis=0)).cumsum(axis=0)))
    cut = np.minimum(f, (known - 1) // 2)
    expected = (total[known - cut, columns] - sorted_sum[cut, columns]) / (known - 2 * cut)
    found = combine(by("trimmed_mean", f), mine, others).vector
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_clipping_takes_the_mean_of_fragments_as_far_as_they_are_within_the_radius() -> None:
    """A third of a model at a distance of 9 * sqrt(2) counts as a whole one at 9 * sqrt(6)."""
    others = [NINE.fragment(0, of=3), of(3, 3, 3, 3, 3, 3).fragment(0, 1, of=3)]
    assert combine(by("clipping", clip=100), ZERO, others) == combine(MEAN, ZERO, others)
    found = combine(by("clipping", clip=3 * np.sqrt(6)), ZERO, others)  # 9 is moved to 3
    np.testing.assert_allclose(found.vector, [2, 2, 1.5, 1.5, 0, 0], rtol=1e-6)
    weighted = combine(by("clipping", clip=3 * np.sqrt(6)), ZERO, [others[0], NINE], [1.0, 2.0], own=0.0)
    np.testing.assert_allclose(weighted.vector, [3] * 6, rtol=1e-6)
    assert combine(by("clipping", byzantine=0), ZERO, [ZERO.sparse([], same=False)]) == ZERO


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_a_fragment_of_one_bad_peer_does_not_leave_the_range_of_the_honest(rule: str) -> None:
    honest = [of(1, 1, 1, 1, 1, 1).fragment(0, 1, of=3), of(2, 2, 2, 2, 2, 2).fragment(1, 2, of=3)]
    found = combine(by(rule), ZERO, [of(*[1e9] * 6).fragment(1, of=3), *honest])
    assert found.vector.tolist() == [0.5, 0.5, 1.5, 1.5, 1, 1]


def test_the_guard_measures_a_partial_model_as_it_acts_and_the_direction_of_what_was_sent() -> None:
    mine, sent = of(3, 4, 0, 0, 0, 1), of(-3, -4, 0, 0, 0, 7).sparse([0, 1])
    figures = measure(sent, mine)
    assert figures.norm == pytest.approx(np.sqrt(26))
    assert figures.distance == pytest.approx(10)
    assert figures.cosine == pytest.approx(-1)
    assert measure(sent, None).norm == pytest.approx(5 * np.sqrt(3))


def test_one_huge_number_of_a_partial_model_is_an_outlier() -> None:
    layout = Layout((Entry("core", (400,)),), ())
    chance = np.random.default_rng(0)
    mine = Model(layout, chance.standard_normal(400, dtype=np.float32))

    def near(seed: int) -> Model:
        noise = np.random.default_rng(seed).standard_normal(400, dtype=np.float32)
        return Model(layout, mine.vector + np.float32(0.1) * noise)

    guard = Guard(GuardSettings(outliers=6.0), certain=True)
    for i in range(8):
        guard.examine(Offer(PeerId(f"p{i}"), near(i).fragment(i % 4, of=4)), mine, 0.0)
    vector = near(9).vector.copy()
    vector[7] = 1e6
    with pytest.raises(Refused, match="norm"):
        guard.examine(Offer(PeerId("eve"), Model(layout, vector).sparse([7])), mine, 0.0)


def test_the_gate_scores_a_completed_model_and_blames_its_sender() -> None:
    blamed: list[object] = []
    guard = Guard(GuardSettings(gate=0.1), certain=True, tell=lambda _, data: blamed.append(data["peer"]))
    offer = guard.examine(Offer(PeerId("eve"), NINE.sparse([0])), ZERO, 0.0)
    step = Average(ZERO, [offer.model])
    models = guard.to_score(step, ZERO)
    assert [m.vector.tolist() for m in models] == [[0] * 6, [9, 0, 0, 0, 0, 0]]
    scores = [Eval(loss, 0.0, 1) for loss in (0.1, 9.0, 1.0)]
    assert guard.sifted(step, scores, 0.0).others == []
    assert blamed == ["eve"]
