from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, sqrt
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node import aggregate
from pfl_node.aggregate import BLOCK, RuleName, combine, mean
from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import AggregateSettings
from tests.drive_policy import LAYOUT, model
from tests.toy import constant
from tests.vectors import Exact, Rows, by, combined, flat, norms, numbers, tables, wild

NAMES = get_args(RuleName)
SIZES = [1, BLOCK - 1, BLOCK, 2 * BLOCK + 17]
HUGE = float(np.finfo(np.float32).max)

byzantine = st.integers(0, 4)
rules = st.sampled_from(NAMES)


# -- the same in plain numpy -----------------------------------------------------------------------------------


def plain_trimmed(rows: Rows, f: int) -> Exact:
    cut = min(f, (len(rows) - 1) // 2)
    return np.asarray(np.sort(rows.astype(np.float64), axis=0)[cut : len(rows) - cut].mean(axis=0))


def plain_scores(rows: Rows, f: int) -> list[float]:
    n, exact = len(rows), rows.astype(np.float64)
    neighbours = n - min(f, (n - 3) // 2) - 2
    apart = [[float(np.linalg.norm(one - other)) ** 2 for other in exact] for one in exact]
    return [sum(sorted(away)[1 : 1 + neighbours]) for away in apart]


def plain_krum(rows: Rows, f: int) -> Exact:
    return np.asarray(rows[int(np.argmin(plain_scores(rows, f)))], np.float64)


def plain_multi_krum(rows: Rows, f: int) -> Exact:
    best = np.argsort(plain_scores(rows, f), kind="stable")[: len(rows) - min(f, (len(rows) - 1) // 2)]
    return np.asarray(rows[best].mean(axis=0, dtype=np.float64))


def plain_clipping(rows: Rows, f: int) -> Exact:
    mine, *others = rows.astype(np.float64)
    away = [float(np.linalg.norm(x - mine)) for x in others]
    radius = sorted(away, reverse=True)[min(2 * f, len(away) - 1)]
    pulled = [(x - mine) * min(1.0, radius / d) for x, d in zip(others, away, strict=True)]
    return np.asarray(mine + np.sum(pulled, axis=0) / len(rows))


PLAIN: dict[str, Callable[[Rows, int], Exact]] = {
    "mean": lambda rows, _: rows.mean(axis=0, dtype=np.float64),
    "median": lambda rows, _: np.median(rows.astype(np.float64), axis=0),
    "trimmed_mean": plain_trimmed,
    "krum": plain_krum,
    "multi_krum": plain_multi_krum,
    "clipping": plain_clipping,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("n", "f"), [(3, 1), (4, 0), (9, 2), (20, 3)])
@pytest.mark.parametrize("rule", NAMES)
def test_every_rule_is_exact_to_a_millionth_whatever_the_size(rule: str, n: int, f: int, size: int) -> None:
    rows = np.random.default_rng([n, size]).normal(size=(n, size)).astype(np.float32)
    np.testing.assert_allclose(combined(by(rule, f), rows), PLAIN[rule](rows, f), rtol=1e-6, atol=1e-6)


def test_the_settings_know_the_same_rules() -> None:
    assert set(get_args(AggregateSettings.model_fields["rule"].annotation)) == set(NAMES) == set(PLAIN)


# -- what holds for every rule ---------------------------------------------------------------------------------


@given(rules, tables(elements=wild), byzantine)
def test_the_answer_is_within_the_range_of_the_models_however_large_they_are(
    rule: str, rows: Rows, f: int
) -> None:
    got = combined(by(rule, f), rows)
    assert got.dtype == np.float32
    assert (rows.min(axis=0) <= got).all()
    assert (got <= rows.max(axis=0)).all()


@given(rules, tables(7), byzantine, st.data())
def test_the_order_of_the_others_does_not_matter(rule: str, rows: Rows, f: int, data: st.DataObject) -> None:
    shuffled = rows[[0, *data.draw(st.permutations(range(1, len(rows))))]]
    if rule.endswith("krum") and len(rows) > 2 and len(set(plain_scores(rows, f))) < len(rows):
        return  # of models with the same score the first one wins
    np.testing.assert_allclose(combined(by(rule, f), shuffled), combined(by(rule, f), rows), rtol=1e-6, atol=1e-5)


@given(rules, tables(), byzantine, numbers)
def test_moving_all_models_moves_the_answer_as_far(rule: str, rows: Rows, f: int, step: float) -> None:
    rows, by_step = np.round(rows), np.float32(round(step))  # so that moving them costs no digits
    np.testing.assert_allclose(
        combined(by(rule, f), rows + by_step), combined(by(rule, f), rows) + by_step, atol=1e-4
    )


@given(rules, tables(), byzantine, st.sampled_from([nan, inf, -inf]), st.data())
def test_models_that_are_not_finite_never_matter(
    rule: str, rows: Rows, f: int, bad: float, data: st.DataObject
) -> None:
    mine, *others = flat(rows)
    expected = combine(by(rule, f), mine, others)
    for _ in range(data.draw(st.integers(1, 5))):
        broken = rows[0].copy()
        broken[data.draw(st.integers(0, broken.size - 1))] = bad
        others.insert(data.draw(st.integers(0, len(others))), *flat(broken[None]))
    assert combine(by(rule, f), mine, others) == expected


@given(rules, tables(), byzantine, st.data())
def test_a_weight_of_zero_leaves_a_model_out(rule: str, rows: Rows, f: int, data: st.DataObject) -> None:
    mine, *others = flat(rows)
    weights = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(others), max_size=len(others)))
    kept = [m for m, w in zip(others, weights, strict=True) if w]
    assert combine(by(rule, f), mine, others, weights) == combine(by(rule, f), mine, kept)


@pytest.mark.parametrize("rule", NAMES)
def test_the_inputs_stay_as_they_are(rule: str) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    before = rows.copy()
    combined(by(rule), rows)
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("rule", NAMES)
def test_cores_heads_and_parts_without_numbers_are_combined_like_models(rule: str) -> None:
    heads = [model(1, 5).head, model(1, 5).head, model(1, 5).head]
    assert combine(by(rule), heads[0], heads[1:]) == heads[0]
    empty = Model(Layout((), ()), np.empty(0, np.float32))
    assert combine(by(rule), empty, [empty, empty, empty]) == empty


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e308])
def test_weights_of_any_size_are_shares(rule: str, weight: float) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    got = combined(by(rule), rows, weights=[weight] * 3, own=weight)
    np.testing.assert_allclose(got, combined(by(rule), rows), atol=1e-6)


# -- whose models count ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize("own", [0.0, 1.0])
def test_alone_or_with_nothing_usable_the_answer_is_mine(rule: str, own: float) -> None:
    for mine in (model(1), model(nan)):
        for others, weights in (([], None), ([model(nan), model(inf)], None), ([model(5)], [0.0])):
            assert combine(by(rule), mine, others, weights, own) is mine


@pytest.mark.parametrize("rule", NAMES)
def test_if_mine_is_not_finite_the_others_alone_are_combined(rule: str) -> None:
    only = model(4)
    assert combine(by(rule), model(nan), [only]) is only
    assert combine(by(rule), model(inf), [model(2), model(4)]) == model(3)
    assert combine(by(rule), model(nan), [model(2), model(2), model(2), model(2)]) == model(2)


def test_clipping_without_a_centre_is_the_median() -> None:
    assert combine(by("clipping", clip=0.1), model(nan), [model(1), model(2), model(900)]) == model(2)


@given(st.sampled_from([r for r in NAMES if r != "clipping"]), tables(least=2), byzantine)
def test_without_weight_mine_does_not_matter(rule: str, rows: Rows, f: int) -> None:
    far = rows.copy()
    far[0] = 1e6
    assert np.array_equal(combined(by(rule, f), rows, own=0.0), combined(by(rule, f), far, own=0.0))


def test_without_weight_mine_is_still_the_centre_of_clipping() -> None:
    got = combine(by("clipping", clip=sqrt(3)), model(0), [model(10), model(0.5)], own=0.0)
    np.testing.assert_allclose(got.vector, model((1 + 0.5) / 2).vector, rtol=1e-6)


@pytest.mark.parametrize("rule", NAMES)
def test_two_models_that_nobody_can_judge_are_averaged(rule: str) -> None:
    assert combine(by(rule, byzantine=3), model(1), [model(5)]) == model(3)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("median", 1.5), ("trimmed_mean", 1.5), ("krum", 1.0), ("multi_krum", 1.25), ("clipping", 4 / 3)],
)
@pytest.mark.parametrize("bad", [100.0, HUGE])
def test_one_bad_model_of_three_does_little(rule: str, expected: float, bad: float) -> None:
    for others in ([model(1.5), model(bad)], [model(bad), model(1.5)]):
        got = combine(by(rule), model(1), others).vector
        np.testing.assert_allclose(got, model(expected).vector, rtol=1e-6)


@given(rules, tables(elements=wild), st.integers(0, 10**6), st.floats(1e-6, 1e6) | st.none())
def test_no_number_of_bad_models_asked_for_is_too_large(rule: str, rows: Rows, f: int, clip: float | None) -> None:
    assert np.isfinite(combined(by(rule, f, clip), rows)).all()


# -- single rules -----------------------------------------------------------------------------------------------


@given(tables(elements=numbers), tables(elements=wild), st.floats(1e-3, 1e3), st.floats(0, 10), st.data())
def test_clipping_never_moves_further_than_its_radius(
    rows: Rows, bad: Rows, radius: float, own: float, data: st.DataObject
) -> None:
    rows = np.concatenate([rows, np.resize(bad, (len(bad), rows.shape[1]))])
    weights = data.draw(st.lists(st.floats(0, 1e3), min_size=len(rows) - 1, max_size=len(rows) - 1))
    got = combined(by("clipping", clip=radius), rows, weights=weights, own=own)
    assert norms(got.astype(np.float64) - rows[0]) <= radius * (1 + 1e-6) + 1e-4


def test_clipping_with_room_enough_is_the_weighted_mean() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    for settings in (by("clipping", clip=1e3), by("clipping", byzantine=0)):
        got = combined(settings, rows, weights=[4, 3, 2, 1], own=5)
        np.testing.assert_allclose(
            got, np.average(rows.astype(np.float64), axis=0, weights=[5, 4, 3, 2, 1]), atol=1e-6
        )


def test_krum_tells_models_apart_that_hardly_differ_beside_what_they_share() -> None:
    """Inner products alone would lose them: 1e7 squared has no digits left for differences of a millionth."""
    for seed in range(30):
        rows = np.full((8, 5), 1e7, np.float32)
        rows[:, 1:] = 1e-6 * np.random.default_rng(seed).normal(size=(8, 4))
        assert np.array_equal(combined(by("krum", 2), rows), plain_krum(rows, 2))


def test_clipping_knows_distances_that_are_too_large_for_a_float32() -> None:
    got = combine(by("clipping"), model(-HUGE), [model(HUGE), model(0.0)])
    np.testing.assert_allclose(got.vector, model(-HUGE / 3).vector, rtol=1e-6)


def test_of_models_with_the_same_score_the_first_wins() -> None:
    assert combine(by("krum"), model(9), [model(2), model(1), model(50), model(0), model(3)]) == model(2)
    twins = [model(1), model(1), model(1)]
    assert combine(by("krum"), twins[0], twins[1:]) is twins[0]


# -- the mean --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(numbers, st.floats(0, 10)), min_size=1, max_size=8).filter(
        lambda p: sum(w for _, w in p) > 0.1
    )
)
def test_weights_are_shares_of_their_sum(pairs: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    got = mean([model(v) for v in values], weights).vector
    np.testing.assert_allclose(got, np.full(3, np.average(values, weights=weights)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_model_that_is_not_finite_is_left_out_and_its_weight_with_it(bad: float) -> None:
    assert mean([model(1), model(bad), model(3)]) == model(2)
    assert mean([model(1), model(bad, 0), model(5)], [3, 100, 1]) == model(2)


def test_if_nothing_finite_is_left_for_the_mean_that_is_an_error() -> None:
    for models, weights in (([], None), ([model(nan)], None), ([model(1), model(nan)], [0, 1])):
        with pytest.raises(ValueError, match="nothing to average"):
            mean(models, weights)


def test_the_mean_of_one_is_itself() -> None:
    only = model(4)
    assert mean([only]) is only
    assert mean([only, model(nan)]) is only
    assert mean([only, model(7)], [1, 0]) is only


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_largest_numbers_do_not_overflow(n: int) -> None:
    assert mean([model(HUGE)] * n) == model(HUGE)


# -- what a policy can do wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", NAMES)
def test_models_of_different_layouts_are_not_combined(rule: str) -> None:
    stranger = Model(Layout(LAYOUT.core_entries, (Entry("other", (1,)),)), model(1).vector)
    for odd in (stranger, model(1).core):
        with pytest.raises(LayoutMismatch, match="different layouts"):
            combine(by(rule), model(1), [odd])
        with pytest.raises(LayoutMismatch, match="different layouts"):
            mean([model(1), odd])


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([], "2 models but 0 weights"),
        ([1.0], "2 models but 1 weights"),
        ([1.0, -1.0], "weight is negative"),
        ([1.0, nan], "not finite"),
        ([1.0, inf], "not finite"),
    ],
)
def test_weights_that_make_no_sense_are_errors(weights: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mean([model(1), model(2)], weights)
    for rule in NAMES:
        with pytest.raises(ValueError, match=text):
            combine(by(rule), model(0), [model(1), model(2)], weights)


@pytest.mark.parametrize("own", [-1.0, nan, inf])
def test_an_own_weight_that_makes_no_sense_is_an_error(own: float) -> None:
    with pytest.raises(ValueError, match="negative or not finite"):
        combine(by("mean"), model(0), [model(1)], own=own)


# -- the network that sorts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 12))
def test_the_network_puts_the_middle_in_order_for_everything_that_can_come(n: int) -> None:
    """A network that sorts all zeros and ones sorts everything (Knuth 5.3.4, the zero-one principle)."""
    for cut in range((n + 1) // 2):
        for bits in range(1 << n):
            row = [bits >> i & 1 for i in range(n)]
            expected = sorted(row)[cut : n - cut]
            for low, high in aggregate._network(n, cut):
                row[low], row[high] = min(row[low], row[high]), max(row[low], row[high])
            assert row[cut : n - cut] == expected


@pytest.mark.parametrize("claims", [[1e12], [100.0, 1e12]])
def test_a_liar_among_one_or_two_others_is_measured_by_my_own_number(claims: list[float]) -> None:
    mine, others = constant(0.0), [constant(1.0) for _ in claims]
    got = aggregate.combine(AggregateSettings(claim=2.0), mine, others, claims, own=100.0, claimed=True)
    least = 100.0 / (100.0 + sum(min(c, 200.0) for c in claims))  # what is left to mine
    assert got.vector[0] == pytest.approx(1 - least)


def test_a_claim_is_believed_up_to_so_many_times_the_median_and_only_where_it_is_one() -> None:
    mine, others = constant(0.0), [constant(1.0), constant(1.0), constant(9.0)]
    claims = [100.0, 100.0, 1e12]
    bounded = aggregate.combine(AggregateSettings(claim=2.0), mine, others, claims, own=0.0, claimed=True)
    assert bounded.vector[0] == pytest.approx((1 + 1 + 2 * 9) / 4)
    for settings, claimed in ((AggregateSettings(claim=None), True), (AggregateSettings(claim=2.0), False)):
        believed = aggregate.combine(settings, mine, others, claims, own=0.0, claimed=claimed)
        assert believed.vector[0] == pytest.approx(9.0)
    equal = aggregate.combine(AggregateSettings(), mine, others, [5.0, 6.0, 40.0], own=0.0, claimed=True)
    assert equal == aggregate.combine(AggregateSettings(), mine, others, [5.0, 6.0, 40.0], own=0.0)
