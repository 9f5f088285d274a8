"""Answers about models of others: how far one sample can move them, what they cost, and to whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused, StoreError
from pfl_node.model import Model
from pfl_node.protocol.privacy.noisy_scores import GRID, PEERS, NoisyScores, grid_sum, noisy_mean
from pfl_node.settings.sections import PrivacySettings
from pfl_node.types import Eval, PeerId
from tests.toy import constant

YOU = PeerId("you")
LOSSES, RIGHT = np.array([0.5, 1.0, 2.0, 9.0]), np.array([1.0, 1.0, 0.0, 0.0])
anything = st.floats(allow_nan=True, allow_infinity=True)


def oracle(note: Any = None, **settings: Any) -> NoisyScores:
    made = PrivacySettings(oracle=True, **settings)
    return NoisyScores(made, Random(5), note) if note else NoisyScores(made, Random(5))


def ask(host: NoisyScores, peer: PeerId = YOU, model: Model | None = None) -> Eval:
    return host.answer(peer, model or constant(1.0), LOSSES, RIGHT)


def refused(host: NoisyScores, peer: PeerId = YOU, model: Model | None = None) -> Refused | None:
    try:
        ask(host, peer, model)
    except Refused as error:
        return error
    return None


@given(st.lists(anything, min_size=1, max_size=20), st.data(), anything, st.floats(0.01, 100))
def test_another_sample_in_the_place_of_one_moves_the_sum_by_one_grid_at_most(
    losses: list[float], data: st.DataObject, other: float, clip: float
) -> None:
    place = data.draw(st.integers(0, len(losses) - 1))
    swapped = [*losses]
    swapped[place] = other
    before, after = (grid_sum(np.array(figures), clip) for figures in (losses, swapped))
    assert abs(before - after) <= GRID
    assert 0 <= before <= GRID * len(losses)


def test_what_is_not_a_number_counts_as_the_most_and_less_than_nothing_as_nothing() -> None:
    figures = np.array([math.nan, math.inf, -math.inf, -3.0, 2.0, 50.0])
    assert grid_sum(figures, 4.0) == GRID * (1 + 1 + 0 + 0 + 0.5 + 1)


def test_the_noise_of_an_answer_has_the_scale_that_its_epsilon_says() -> None:
    chance, n, epsilon, clip = Random(2), 1000, 0.5, 4.0
    figures = np.full(n, clip / 2)
    off = [noisy_mean(figures, clip, epsilon, chance) - clip / 2 for _ in range(3000)]
    assert abs(sum(map(abs, off)) / len(off) / (clip / n / epsilon) - 1) < 0.1


@given(st.floats(1e-3, 10), st.integers(0, 2**32))
def test_an_answer_is_a_possible_figure_whatever_the_noise(epsilon: float, seed: int) -> None:
    made = NoisyScores(PrivacySettings(oracle=True, oracle_epsilon=epsilon, oracle_budget=100), Random(seed))
    score = ask(made)
    assert 0 <= score.loss <= made.settings.oracle_clip
    assert 0 <= score.accuracy <= 1
    assert score.samples == 4


def test_the_same_model_again_gets_the_same_answer_for_nothing() -> None:
    host = oracle(oracle_budget=10)
    first = ask(host)
    assert host.known(YOU, constant(1.0)) == first
    assert [ask(host) for _ in range(5)] == [first] * 5
    assert host.spent == {YOU: 0.1}
    assert ask(host, model=constant(2.0)) != first


def test_another_peer_hears_the_same_of_the_same_model_and_pays_for_it() -> None:
    host, third = oracle(), PeerId("third")
    first = ask(host)
    assert host.known(third, constant(1.0)) is None
    assert ask(host, third) == first
    assert host.spent == {YOU: 0.1, third: 0.1}
    assert host.total == 0.1  # both together know no more than one


def test_a_peer_that_has_spent_its_budget_is_told_so_and_others_are_not_affected() -> None:
    host = oracle(oracle_epsilon=0.1, oracle_budget=0.3)
    for n in range(3):
        ask(host, model=constant(n))
    error = refused(host, model=constant(9.0))
    assert error
    assert error.reason is Reason.BUDGET
    assert "epsilon 0.3 of 0.3" in str(error)
    with pytest.raises(Refused):
        host.admit(YOU)
    with pytest.raises(Refused):  # also what it has heard: its header says nothing of the model that would come
        host.known(YOU, constant(0.0))
    assert not refused(host, PeerId("third"))


def test_all_peers_together_hear_no_more_than_the_total() -> None:
    host = oracle(oracle_epsilon=0.1, oracle_budget=1.0, oracle_total=0.3)
    outcomes = [refused(host, PeerId(f"p{n}"), constant(n)) for n in range(5)]
    assert [error is None for error in outcomes] == [True, True, True, False, False]
    assert "budget for all peers" in str(outcomes[3])


Questions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60)


@given(Questions, st.floats(0.01, 1), st.floats(0.01, 2), st.none() | st.floats(0.01, 3))
def test_no_budget_is_ever_exceeded_whatever_is_asked_in_whichever_order(
    questions: list[tuple[int, int]], epsilon: float, budget: float, total: float | None
) -> None:
    host = oracle(oracle_epsilon=epsilon, oracle_budget=budget, oracle_total=total)
    heard: dict[PeerId, set[float]] = {}
    for who, what in questions:
        peer = PeerId(f"p{who}")
        if not refused(host, peer, constant(what)):
            heard.setdefault(peer, set()).add(what)
    for peer, models in heard.items():
        assert len(models) * epsilon <= budget + 1e-6
        assert host.spent[peer] == pytest.approx(len(models) * epsilon)
    different = set().union(*heard.values())
    assert total is None or len(different) * epsilon <= total + 1e-6


@given(Questions, st.integers(0, 60))
def test_a_restart_refills_nothing_and_changes_no_answer(questions: list[tuple[int, int]], stop: int) -> None:
    lines: list[Mapping[str, Any]] = []
    knobs: dict[str, float] = {"oracle_epsilon": 0.1, "oracle_budget": 0.3, "oracle_total": 0.8}
    before = oracle(lambda event, row: lines.append(row), **knobs)
    for who, what in questions[:stop]:
        refused(before, PeerId(f"p{who}"), constant(what))
    after = oracle(**knobs)
    for line in lines:
        after.load(line)
    assert (after.spent, after.total, after.answers) == (before.spent, before.total, before.answers)
    for who, what in questions:
        peer, model = PeerId(f"p{who}"), constant(what)
        outcomes: list[Eval | str | None] = []
        for host in (before, after):
            try:
                outcomes.append(host.known(peer, model))
            except Refused as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def test_a_segment_of_a_simulation_goes_on_as_it_was() -> None:
    before, after = oracle(), oracle()
    ask(before)
    after.restore(before.dump())
    assert after.known(YOU, constant(1.0)) == before.known(YOU, constant(1.0))
    assert after.dump() == before.dump()


def test_what_cannot_be_written_down_is_not_told_and_not_counted() -> None:
    def full(event: str, row: Mapping[str, Any]) -> None:
        raise StoreError("the disk is full")

    host = oracle(full)
    error = refused(host)
    assert error
    assert error.reason is Reason.NOT_READY
    assert host.spent == {}


def test_one_figure_alone_has_half_of_the_noise_and_the_other_follows_from_it() -> None:
    loss, accuracy = (ask(oracle(oracle_tells=what)) for what in ("loss", "accuracy"))
    assert math.isnan(loss.accuracy)
    assert accuracy.loss == 1 - accuracy.accuracy
    regression = oracle(oracle_tells="both").answer(YOU, constant(1.0), LOSSES, np.full(4, math.nan))
    assert regression == loss or (regression.loss, math.isnan(regression.accuracy)) == (loss.loss, True)


def test_names_that_are_invented_do_not_pile_up() -> None:
    host = oracle()
    host.spent = {PeerId(f"p{n}"): 0.1 for n in range(PEERS)}
    error = refused(host)
    assert error
    assert error.reason is Reason.BUDGET
    assert not refused(host, PeerId("p7"))
