from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from pfl_node.policies.rating import Rating, best_first, rate, rate_peers
from pfl_node.steps import Ask, Fetch, Score
from pfl_node.types import Eval
from tests.drive_policy import A, B, Hand, model, offer
from tests.pull_swarm import among, right


@pytest.mark.parametrize(
    ("metric", "values", "order"),
    [
        ("loss", [3, 1, 2], [1, 2, 0]),
        ("loss", [nan, 1, nan, 0], [3, 1, 0, 2]),
        ("loss", [inf, nan, -1], [2, 0, 1]),
        ("accuracy", [0.3, 0.1, 0.2], [0, 2, 1]),
        ("accuracy", [nan, 0.0, nan, 1.0], [3, 1, 0, 2]),
        ("accuracy", [0.5, 0.5, 0.5], [0, 1, 2]),  # equals stay as they came
        ("accuracy", [], []),
    ],
)
def test_best_first_as_a_table(metric: Any, values: list[float], order: list[int]) -> None:
    scores = [right(v) if metric == "accuracy" else right(0.5, loss=v) for v in values]
    assert best_first(enumerate(scores), metric) == order


def test_the_tasks_best_metric_takes_the_place_of_the_accuracy_if_every_score_has_it() -> None:
    by_score = [Eval(1.0, 0.9, 5, score=0.1), Eval(1.0, 0.1, 5, score=0.9)]
    assert best_first(enumerate(by_score), "accuracy") == [1, 0]
    one_without = [by_score[0], Eval(1.0, 0.1, 5)]
    assert best_first(enumerate(one_without), "accuracy") == [0, 1]
    assert best_first(enumerate(by_score), "loss") == [0, 1]


def test_without_classes_the_lowest_loss_is_best() -> None:
    assert best_first(enumerate(Eval(loss, nan, 5) for loss in (2.0, 1.0, 3.0)), "accuracy") == [1, 0, 2]


def test_models_that_are_here_are_scored_on_my_data_all_at_once() -> None:
    found, hand = run(rate(knobs(scored="mine", score_samples=5), model(0), [offer(A, 1), offer(A, 2)]), Hand())
    assert [(o.sender, score.loss) for o, score in found] == [(A, 1), (A, 2)]
    assert [(s.samples, len(s.models)) for s in hand.all(Score)] == [(5, 2)]


def test_or_their_senders_are_asked_once_each_and_the_silent_left_out() -> None:
    offers = [offer(A, 1), offer(B, 2), offer(A, 3)]
    found, hand = run(rate(knobs(), model(8), offers), among({}, {A: 0.7}))
    assert [(o, score.accuracy) for o, score in found] == [(offers[0], 0.7), (offers[2], 0.7)]
    assert [(s.peers, s.model) for s in hand.all(Ask)] == [([A, B], model(8))]


@pytest.mark.parametrize("scored", ["mine", "theirs"])
def test_nothing_is_asked_about_nothing(scored: Any) -> None:
    found, hand = run(rate(knobs(scored=scored), model(0), []), Hand())
    assert (found, hand.asked) == ([], [])


def test_peers_tell_or_their_models_are_fetched_and_come_along() -> None:
    (told, models), hand = run(rate_peers(knobs(), model(0), [A, B]), among({A: 1}, {B: 0.7}))
    assert (told, models, hand.all(Fetch)) == ({B: right(0.7)}, {}, [])
    (told, models), hand = run(rate_peers(knobs(scored="mine"), model(0), [A, B]), among({A: 1}, {B: 0.7}))
    assert (list(told), list(models), hand.all(Ask)) == ([A], [A], [])


def knobs(**given: Any) -> Rating:
    return Rating.model_validate(given)


def run(flow: Any, hand: Hand) -> tuple[Any, Hand]:
    """What it returns."""
    found = []

    async def main() -> None:
        found.append(await flow)

    hand.run(main())
    return found[0], hand


def test_peers_are_compared_by_the_tasks_metric_only_if_all_of_them_told_it() -> None:
    """One with noisy answers (`privacy.oracle`) tells its loss alone."""
    told, better, silent = Eval(0.9, nan, 9, score=0.4), Eval(0.8, nan, 9, score=0.7), Eval(0.1, nan, 9)
    assert best_first(enumerate([told, better]), "accuracy") == [1, 0]
    assert best_first(enumerate([told, silent, better]), "accuracy") == [1, 2, 0]
