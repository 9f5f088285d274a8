from __future__ import annotations

from math import nan
from typing import Any

import pytest

from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.policies.gossip import Gossip
from pfl_node.policies.local import Local
from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Linger, Publish, Report, Score, Send
from pfl_node.store.policy_state import freeze, thaw
from pfl_node.types import Eval
from tests.drive_policy import LAYOUT, A, Hand, Run, make, model, offer
from tests.pull_swarm import kinds, validated


def test_a_restart_in_the_middle_stops_at_the_same_round_with_the_same_model() -> None:
    accuracies = [0.1, 0.2, 0.9, 0.3, 0.4, 0.1, 0.1, 0.1, 0.1]
    whole, hand = make(Local, rounds=None, patience=4, window=2), validated(Hand(), accuracies)
    hand.run(whole.main())
    for cut in range(len(hand.all(Report))):
        before, part = make(Local, rounds=None, patience=4, window=2), validated(Hand(), accuracies)
        run = Run(before.main(), part)
        for _ in range(cut):
            run.past(Report)
        run.to(Report)
        after, rest = again(before, make(Local, rounds=None, patience=4, window=2)), Hand()
        validated(rest, accuracies[cut + 1 :] or [0.1]).run(after.main())
        assert (after.last, after.model, after.best) == (whole.last, whole.model, whole.best)


def test_a_node_that_stopped_stays_stopped_after_a_restart_and_serves_its_best_model() -> None:
    before, hand = make(RandomPull, rounds=100, patience=1, window=1), validated(Hand(), [0.9, 0.1])
    hand.run(before.main())
    after, hand = (
        again(stopped_at_report(RandomPull), make(RandomPull, rounds=100, patience=1, window=1)),
        Hand([A]),
    )
    hand.run(after.main())
    assert kinds(hand) == [Publish, Linger]
    assert hand.all(Publish)[0].model == before.model


def test_a_gossiping_node_that_stopped_goes_on_pushing_after_a_restart() -> None:
    after = again(stopped_at_report(Gossip), make(Gossip, rounds=100, patience=1, window=1))
    hand, left = Hand([A]), [False, False, True]
    hand.answers[Linger] = lambda _: left.pop(0)
    hand.run(after.main())
    assert kinds(hand, Send, Linger) == [Linger, Send, Linger, Send, Linger]
    assert [s.model for s in hand.all(Send)] == [model(2)] * 2


def test_the_round_it_stops_in_is_reported_before_main_goes_on() -> None:
    policy, hand = make(Gossip, rounds=None, n_peers=1, patience=1, window=1), validated(Hand([A]), [0.9, 0.1])
    policy.trained = True
    hand.run(policy.on_model(offer(A, 1)))
    handler = Run(policy.on_model(offer(A, 1)), hand)
    handler.to(Report)
    assert (policy.stopped, policy.more) == (True, True)
    assert policy.snapshot()["kept"]["last"] == 1
    handler.finish()
    assert not policy.more


@pytest.mark.parametrize("patience", [None, 3])
def test_the_run_may_end_before_the_patience_does(patience: int | None) -> None:
    policy, hand = make(Local, rounds=2, patience=patience), validated(Hand(), [0.5])
    hand.run(policy.main())
    assert (len(hand.all(Report)), policy.stopped) == (2, False)


def test_where_labels_are_no_classes_the_loss_decides() -> None:
    values = iter([3.0, 2.0, 1.0, 5.0, 4.0, 9.0])
    policy, hand = make(Local, rounds=None, patience=2, window=1), Hand()
    hand.answers[Score] = lambda _: (Eval(loss=next(values), accuracy=nan, samples=1),)
    hand.run(policy.main())
    assert (policy.last, policy.model) == (4, model(3))


def test_a_score_that_is_not_a_number_says_nothing() -> None:
    scores = iter([nan, nan, 0.5, nan, 0.4])
    policy, hand = make(Local, rounds=None, patience=2, window=2), Hand()
    hand.answers[Score] = lambda _: (Eval(loss=nan, accuracy=next(scores), samples=1),)
    hand.run(policy.main())
    assert (policy.last, policy.model) == (4, model(3))


def test_nothing_but_numbers_and_the_best_model_is_kept() -> None:
    policy = make(Local, rounds=3, patience=2)
    validated(hand := Hand(), [0.1, 0.3]).run(policy.main())
    _, vectors = freeze(policy.snapshot()["kept"])
    assert len(vectors) == 1
    assert len(hand.all(Score)) == 3


def stopped_at_report(cls: type[EarlyStopping]) -> EarlyStopping:
    """One that is about to report the round in which it stopped, at 2 after a best model of 2."""
    policy = make(cls, rounds=100, patience=1, window=1)
    if isinstance(policy, Gossip):
        policy.trained = True
    policy.round, policy.last, policy.model, policy.best = 1, 1, model(2), (0.9, 0, model(2))
    return policy


def again(before: EarlyStopping, after: Any) -> Any:
    """Restored from what a disk would hold."""
    after.restore(thaw(*freeze(before.snapshot()), LAYOUT))
    return after
