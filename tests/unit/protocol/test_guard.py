"""One node's guard: whom it refuses, what it counts, what it tells."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.protocol.guard.guard import Guard, Provenance
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Offer, PeerId
from tests.toy import constant

A, B = PeerId("a"), PeerId("b")


class EventList(list[tuple[str, Mapping[str, Any]]]):
    def __call__(self, event: str, data: Mapping[str, Any]) -> None:
        self.append((event, data))


def make_guard(*, certain: bool = True, **settings: Any) -> tuple[Guard, EventList]:
    told = EventList()
    return Guard(GuardSettings(**settings), certain=certain, tell=told), told


def test_bad_messages_end_in_quarantine_and_that_is_told() -> None:
    guard, told = make_guard()
    for _ in range(3):
        guard.admit(A, 0.0)
        guard.offence(A, Reason.NOT_FINITE, 0.0)
    with pytest.raises(Refused) as refused:
        guard.admit(A, 1.0)
    assert refused.value.reason is Reason.QUARANTINED
    assert "59 s" in str(refused.value)
    assert guard.free([A, B], 1.0) == [B]
    assert told == [("quarantined", {"peer": A, "seconds": 60.0, "reason": "not_finite", "times": 1})]
    guard.admit(A, 61.0)
    status = guard.status(1.0)
    assert status["quarantine"] == {A: 59.0}
    assert status["refused"] == {"quarantined": 1}
    assert status["ever"] == {A: 1}


def test_without_sure_names_nothing_counts_against_anybody() -> None:
    guard, told = make_guard(certain=False)
    for _ in range(100):
        guard.offence(A, Reason.NOT_FINITE, 0.0)
    guard.admit(A, 0.0)
    assert guard.status(0.0)["against"] == {}
    assert told == []


@pytest.mark.parametrize(
    "reason",
    [
        "layout",
        "version",
        "stale_round",
        "future_round",
        "truncated",
        "unknown_run",
        "not_ready",
        "internal",
        "gone",
        "ok",
    ],
)
def test_what_says_nothing_about_a_peer_does_not_count(reason: str) -> None:
    guard, _ = make_guard()
    for _ in range(1000):
        guard.offence(A, reason, 0.0)
    guard.admit(A, 0.0)


def test_an_outlier_is_refused_and_of_what_was_fetched_left_out() -> None:
    guard, told = make_guard(outliers=6.0)
    mine = constant(1.0)
    offers = [Offer(PeerId(f"p{i}"), constant(1.0 + i / 10)) for i in range(5)]
    assert guard.fetched(offers, mine, 0.0) == tuple(offers)
    with pytest.raises(Refused) as refused:
        guard.examine(Offer(A, constant(-40.0)), mine, 0.0)
    assert refused.value.reason is Reason.OUTLIER
    assert guard.fetched([Offer(A, constant(-40.0)), Offer(B, constant(1.1))], mine, 0.0)[0].sender == B
    assert [event for event, _ in told] == ["kept_out"]
    assert guard.refused == {"outlier": 2}
    assert guard.status(0.0)["against"] == {A: 2.0}


def test_the_gate_leaves_out_what_is_much_worse_and_knows_who_sent_it() -> None:
    guard, told = make_guard(gate=1.0, blame=1.0)
    mine, good, bad = constant(0.0), constant(1.0), constant(7.0)
    for peer, model in ((A, bad), (B, good)):
        guard.examine(Offer(peer, model), mine, 0.0)
    guard.untrained = 2.0
    step = Average(mine.head, [good.head, bad.head], [1.0, 2.0])
    assert len(guard.to_score(step, mine)) == 3
    left = guard.sifted(step, [Eval(loss, 0.0, 1) for loss in (0.5, 0.6, 5.0)], now=0.0)
    assert [m.vector[0] for m in left.others] == [1.0]
    assert left.weights == [1.0]
    assert guard.status(0.0)["against"] == {A: 1.0}
    assert told == [("kept_out", {"peer": A, "reason": "gate", "loss": 5.0, "mine": 0.5})]


def test_what_the_gate_refuses_does_not_count_against_its_sender_unless_the_operator_wants_it() -> None:
    guard, told = make_guard(gate=0.5, outliers=6.0)
    mine, theirs = constant(0.0), constant(1.0)
    guard.examine(Offer(A, theirs), mine, 0.0)
    guard.untrained = 2.0
    for _ in range(100):
        left = guard.sifted(Average(mine, [theirs]), [Eval(loss, 0.0, 1) for loss in (0.5, 9.0)], now=0.0)
        assert not left.others
    assert guard.status(0.0)["against"] == {}
    assert {event for event, _ in told} == {"kept_out"}


def test_the_gate_has_no_say_unless_it_is_on_and_there_is_something_to_merge() -> None:
    mine = constant(1.0)
    assert make_guard()[0].to_score(Average(mine, [mine]), mine) == ()
    assert make_guard(gate=1.0)[0].to_score(Average(mine, []), mine) == ()


def test_a_copy_goes_on_alike() -> None:
    guard, _ = make_guard(outliers=6.0)
    for _ in range(3):
        guard.offence(A, Reason.BOMB, 0.0)
    copy, _ = make_guard(outliers=6.0)
    copy.load(guard.dump())
    assert copy.status(1.0) == guard.status(1.0)
    assert copy.free([A], 1.0) == []


def test_who_sent_a_model_is_forgotten_with_the_model() -> None:
    origins, model = Provenance(), constant(1.0)
    origins.received(model, A)
    assert (origins.of(model.core), origins.of(model.head), origins.of(constant(1.0))) == (A, A, None)
    origins.received(partial := constant(2.0).sparse([0]), B)
    completed = partial.over(model)
    del partial
    assert (origins.of(completed), origins.of(completed.head), len(origins)) == (B, B, 2)
    del model, completed
    gc.collect()
    assert len(origins) == 0
