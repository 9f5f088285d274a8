from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node import predictions
from pfl_node.errors import LayoutMismatch
from pfl_node.model import Model
from pfl_node.policies.ensemble import SLACK, How, by_novelty, teacher
from tests.drive_policy import said

HOWS: tuple[How, ...] = ("w0", "w1", "w2")
SAMPLES, CLASSES = 4, 3
LAYOUT = predictions.layout_for(SAMPLES, CLASSES, "some")
every_scheme = pytest.mark.parametrize("how", HOWS)


def firsts(made: Model | None) -> list[float]:
    """The probabilities of the first class, to five places."""
    assert made is not None
    return [round(float(p), 5) for p in predictions.outputs(made)[:, 0]]


# -- the schemes -------------------------------------------------------------------------------------------------


def test_w0_counts_everybody_by_the_number_of_samples() -> None:
    assert firsts(teacher("w0", [said(1.0, 0.0), said(0.0, 0.0)], [30, 10])) == [0.75, 0.0]


def test_w0_of_clients_that_tell_no_number_counts_them_alike() -> None:
    assert firsts(teacher("w0", [said(1.0), said(0.0)], [0, 0])) == [0.5]


def test_w1_believes_of_a_class_who_has_seen_it() -> None:
    """The first client has all of class 0 and a third of class 1: 1 * 0.5 against 1/3 * 0.5 + 2/3 * 0.9."""
    clients = [said(0.5, counts=[8, 2]), said(0.1, counts=[0, 4])]
    made = teacher("w1", clients, [10, 4])
    assert made is not None
    assert predictions.outputs(made).tolist() == [pytest.approx([0.5, 0.5 / 3 + 0.9 * 2 / 3])]


def test_w1_of_a_class_that_nobody_has_is_w0() -> None:
    assert firsts(teacher("w1", [said(0.2), said(0.6)], [1, 3])) == [0.5]


def test_w1_of_a_sample_of_which_nobody_says_what_it_knows_is_w0() -> None:
    clients = [said(0.0, 0.5, counts=[5, 0]), said(1.0, 0.5, counts=[0, 5])]
    assert firsts(teacher("w1", clients, [3, 1])) == [0.25, 0.5]


def test_w2_gives_the_higher_weight_to_the_client_that_has_seen_the_sample() -> None:
    """Equation 3.4 with beta = 1: the errors 0.1 and 0.3 make the weights 3/4 and 1/4."""
    clients = [said(1.0, 1.0, novelty=[0.1, 0.3]), said(0.0, 0.0, novelty=[0.3, 0.1])]
    assert firsts(teacher("w2", clients, [1, 1000], beta=1)) == [0.75, 0.25]


def test_w2_with_a_higher_beta_listens_to_the_expert_alone() -> None:
    clients = [said(1.0, novelty=[0.1]), said(0.0, novelty=[0.2])]
    assert firsts(teacher("w2", clients, [1, 1], beta=6)) == [round(64 / 65, 5)]


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_w2_is_stable_for_tiny_and_huge_errors(scale: float) -> None:
    clients = [said(1.0, novelty=[scale]), said(0.0, novelty=[3 * scale])]
    assert firsts(teacher("w2", clients, [1, 1], beta=1)) == [0.75]


def test_w2_of_a_sample_without_any_error_believes_those_who_know_it() -> None:
    clients = [said(1.0, 1.0, novelty=[0.0, 1.0]), said(0.0, 0.0, novelty=[1.0, 1.0])]
    assert firsts(teacher("w2", clients, [1, 1])) == [1.0, 0.5]


def test_w2_gives_no_weight_to_a_client_that_tells_no_novelty() -> None:
    clients = [said(1.0), said(0.25, novelty=[7.0])]
    assert firsts(teacher("w2", clients, [100, 1])) == [0.25]


def test_w2_is_w0_when_nobody_tells_a_novelty() -> None:
    assert firsts(teacher("w2", [said(1.0), said(0.0)], [3, 1])) == [0.75]


# -- gamma -------------------------------------------------------------------------------------------------------


def experts_of(classes: int) -> list[Model]:
    """Client k is sure that every sample is of class k."""
    layout = predictions.layout_for(200, classes, "some")
    return [predictions.pack(layout, np.tile(np.eye(classes)[k], (200, 1))) for k in range(classes)]


@pytest.mark.parametrize(("gamma", "teach"), [(0.01, 1), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_each_block_of_samples_is_taught_by_a_share_of_the_clients(gamma: float, teach: int) -> None:
    """Algorithm 2: "K_t <- random subset (gamma fraction) from K local models"."""
    made = teacher("w0", experts_of(4), [10] * 4, gamma=gamma, seed=(3, 0))
    assert made is not None
    rows = predictions.outputs(made)
    assert rows[rows > 0] == pytest.approx(1 / teach)
    assert ((rows > 0).sum(1) == teach).all()
    blocks = {tuple((row > 0).tolist()) for row in rows[::50]}
    assert (len(blocks) > 1) is (gamma < 1)
    assert (rows[:50] == rows[0]).all()


def test_who_teaches_follows_from_the_seed() -> None:
    first, again, other = (
        teacher("w0", experts_of(4), [1] * 4, gamma=0.5, seed=s) for s in ((1, 0), (1, 0), (1, 1))
    )
    assert first == again != other


# -- bad peers ---------------------------------------------------------------------------------------------------


def experts(n: int) -> list[Model]:
    """Each is an expert of two samples of n, of which it says that they are of the first class."""
    far = np.abs(np.arange(n)[:, None] - np.arange(n)) % (n - 1) > 1
    return [said(*[0.1 if f else 1.0 for f in row], novelty=[9.0 if f else 0.01 for f in row]) for row in far]


def test_one_to_whom_no_sample_is_strange_does_not_teach_alone() -> None:
    liar = said(*[0.0] * 9, novelty=[1e-30] * 9)
    assert firsts(teacher("w2", [*experts(9), liar], [1] * 10)) == [0.0] * 9
    assert firsts(teacher("w2", [*experts(9), liar], [1] * 10, most=0.4)) == [0.6] * 9


def test_one_that_claims_less_than_the_bound_is_believed_as_before() -> None:
    alone, bounded = (teacher("w2", experts(9), [1] * 9, most=most) for most in (1.0, 0.4))
    assert alone == bounded


def test_an_expert_of_more_than_the_bound_stays_the_first_on_its_samples() -> None:
    expert = said(*[1.0] * 6, *[0.0] * 4, novelty=[0.01] * 6 + [9.0] * 4)
    others = [said(*[0.0] * 10, novelty=[1.0] * 10) for _ in range(9)]
    assert firsts(teacher("w2", [expert, *others], [1] * 10, most=0.4)) == [round(0.4 / 0.6, 5)] * 6 + [0.0] * 4


@given(
    st.integers(1, 8).flatmap(
        lambda k: st.lists(st.lists(st.floats(1e-30, 1e30), min_size=3, max_size=3), min_size=k, max_size=k)
    ),
    st.floats(0.01, 1),
)
def test_whatever_they_claim_nobody_has_more_than_the_bound(claims: list[list[float]], most: float) -> None:
    clients = [said(1.0, 1.0, 1.0, novelty=row) for row in claims]
    weights = by_novelty(clients, np.ones((len(claims), 1, 1)), 6.0, most)
    assert weights.min() >= 0
    assert weights.sum(0) == pytest.approx(1)
    assert weights.mean((1, 2)).max() <= max(most, 2 / len(claims)) + 1e-6


def test_who_says_it_has_a_billion_samples_counts_as_ten_times_the_median() -> None:
    clients = [said(0.0), said(0.0), said(1.0)]
    assert firsts(teacher("w0", clients, [10, 10, 10**9])) == [1.0]
    assert firsts(teacher("w0", clients, [10, 10, 10**9], claim=10)) == [round(100 / 120, 5)]
    assert firsts(teacher("w0", clients, [0, 10, 10**9], claim=1)) != firsts(teacher("w0", clients, [0, 0, 0]))


def test_who_says_it_has_a_billion_samples_of_every_class_counts_as_ten_times_the_median() -> None:
    clients = [said(0.0, counts=[5, 5]), said(0.0, counts=[5, 5]), said(1.0, counts=[1e9, 1e9])]
    assert firsts(teacher("w1", clients, [10] * 3)) == [1.0]
    assert firsts(teacher("w1", clients, [10] * 3, claim=10)) == [round(100 / 120, 5)]


@every_scheme
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8), st.floats(1, 100))
def test_claims_that_are_not_beyond_the_bound_are_believed(how: How, samples: list[int], claim: float) -> None:
    told = sorted(n for n in samples if n) or [1]
    within = [min(n, told[0]) for n in samples]
    clients = [said(i / 10, novelty=[1.0 + i], counts=[1 + i % 2, 2 - i % 2]) for i in range(len(samples))]
    assert firsts(teacher(how, clients, within, claim=claim)) == firsts(teacher(how, clients, within))


BAD = {
    "a NaN": [[np.nan, 1.0]],
    "an infinity": [[np.inf, 0.0]],
    "a negative number": [[-0.5, 1.5]],
    "a row above one": [[0.9, 0.9]],
    "a row of nothing": [[0.0, 0.0]],
}


def raw(rows: Any, **more: npt.NDArray[np.float32]) -> Model:
    array = np.array(rows, np.float32)
    return predictions.pack(predictions.layout_for(len(array), array.shape[1], "toy"), array, **more)


@every_scheme
@pytest.mark.parametrize("rows", BAD.values(), ids=BAD)
def test_predictions_that_are_no_probabilities_are_left_out(how: How, rows: Any) -> None:
    good = said(0.25, novelty=[1.0], counts=[1, 1])
    bad = raw(rows, novelty=np.array([1e-9], np.float32), counts=np.array([9, 9], np.float32))
    assert firsts(teacher(how, [bad, good], [10**9, 1])) == [0.25]


@every_scheme
@pytest.mark.parametrize("more", [{"novelty": [-1.0]}, {"novelty": [np.nan]}, {"counts": [-5.0, 5.0]}])
def test_a_novelty_or_a_count_that_cannot_be_leaves_its_client_out(how: How, more: dict[str, Any]) -> None:
    told: dict[str, Any] = {"novelty": [1.0], "counts": [1, 1]} | more
    bad = said(1.0, **told)
    assert firsts(teacher(how, [bad, said(0.25, novelty=[1.0], counts=[1, 1])], [1, 1])) == [0.25]


@every_scheme
def test_nothing_that_can_be_used_makes_no_teacher(how: How) -> None:
    assert teacher(how, [], []) is None
    assert teacher(how, [raw([[np.nan, 1.0]])], [1]) is None


def test_what_a_rough_encoding_did_to_the_rows_is_forgiven() -> None:
    made = teacher("w0", [raw([[0.5 + SLACK / 4, 0.5 + SLACK / 4]])], [1])
    assert firsts(made) == [0.5]


def test_predictions_about_different_samples_are_not_put_together() -> None:
    with pytest.raises(LayoutMismatch, match="different samples"):
        teacher("w0", [said(1.0), said(1.0, 1.0)], [1, 1])


# -- properties --------------------------------------------------------------------------------------------------


@st.composite
def client(draw: st.DrawFn) -> Model:
    raw_rows = draw(st.lists(st.floats(0, 1), min_size=SAMPLES * CLASSES, max_size=SAMPLES * CLASSES))
    rows = np.array(raw_rows).reshape(SAMPLES, CLASSES) + 1e-3
    strange = draw(st.lists(st.floats(0, 1e6, width=32), min_size=SAMPLES, max_size=SAMPLES))
    counts = draw(st.lists(st.integers(0, 1000), min_size=CLASSES, max_size=CLASSES))
    return predictions.pack(LAYOUT, rows / rows.sum(1, keepdims=True), np.array(strange), np.array(counts))


clients = st.lists(st.tuples(client(), st.integers(0, 10_000)), min_size=1, max_size=5)


def made(how: How, pairs: list[tuple[Model, int]]) -> npt.NDArray[np.float32]:
    found = teacher(how, [m for m, _ in pairs], [n for _, n in pairs])
    assert found is not None
    return predictions.outputs(found)


@every_scheme
@given(pairs=clients)
def test_every_row_of_a_teacher_is_probabilities(how: How, pairs: list[tuple[Model, int]]) -> None:
    rows = made(how, pairs)
    assert (rows >= 0).all()
    if how == "w1":  # equation 3.2 weighs each class for itself
        assert (rows <= 1 + 1e-5).all()
    else:
        assert rows.sum(1) == pytest.approx(1, abs=1e-5)


@every_scheme
@given(pairs=clients, order=st.randoms())
def test_the_order_of_the_clients_does_not_matter(how: How, pairs: list[tuple[Model, int]], order: Any) -> None:
    mixed = list(pairs)
    order.shuffle(mixed)
    assert made(how, mixed) == pytest.approx(made(how, pairs), abs=1e-5)


@every_scheme
@given(one=client(), sizes=st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_clients_that_say_the_same_are_believed(how: How, one: Model, sizes: list[int]) -> None:
    assert made(how, [(one, n) for n in sizes]) == pytest.approx(predictions.outputs(one), abs=1e-5)


@pytest.mark.parametrize("how", ["w0", "w2"])  # w1 weights each class by itself
@given(pairs=clients)
def test_a_teacher_says_nothing_that_lies_outside_of_what_was_said(
    how: How, pairs: list[tuple[Model, int]]
) -> None:
    rows, all_said = made(how, pairs), np.stack([predictions.outputs(m) for m, _ in pairs])
    assert (rows <= all_said.max(0) + 1e-5).all()
    assert (rows >= all_said.min(0) - 1e-5).all()
