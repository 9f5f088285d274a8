from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.protocol.mailbox import Limits, Mailbox, NoObserver
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, core_of, offer
from tests.toy import constant


def deliver(box: Mailbox, sender: PeerId, value: float = 0, round: int | None = None) -> None:
    box.admit(sender, round)
    box.put(offer(sender, value, round=round))


def refused(box: Mailbox, sender: PeerId, round: int | None = None) -> Reason:
    with pytest.raises(Refused) as error:
        box.admit(sender, round)
    assert error.value.peer == sender
    return error.value.reason


def values(offers: tuple[Offer, ...]) -> list[float]:
    return [core_of(o.model) for o in offers]


def test_the_inbox_is_first_in_first_out() -> None:
    box = Mailbox()
    for sender, value in ((A, 1), (B, 2), (A, 3)):
        deliver(box, sender, value)
    assert len(box) == 3
    assert values(box.take(2)) == [1, 2]
    assert values(box.take(5)) == [3]
    assert box.take() == ()


def test_a_message_with_a_round_does_not_reach_the_inbox_and_the_other_way_round() -> None:
    box = Mailbox()
    deliver(box, A, 1, round=0)
    deliver(box, B, 2)
    assert (len(box), box.held) == (1, 2)
    assert values(box.take(9)) == [2]
    assert values(box.collect([A, B], 0)) == [1]
    assert box.held == 0


def test_a_peer_may_have_two_models_in_the_inbox_and_the_third_is_refused() -> None:
    box = Mailbox()
    deliver(box, A)
    deliver(box, A)
    assert refused(box, A) is Reason.FLOOD
    deliver(box, B)
    box.take()
    deliver(box, A)


def test_what_is_still_on_the_wire_counts() -> None:
    box = Mailbox()
    box.admit(A, None)
    box.admit(A, None)
    assert refused(box, A) is Reason.FLOOD
    box.cancel(A, None)
    box.admit(A, None)


def test_the_inbox_holds_so_many_models_in_all() -> None:
    box = Mailbox(Limits(inbox=3))
    deliver(box, A)
    deliver(box, B)
    box.admit(C, None)
    assert refused(box, C) is Reason.FLOOD
    box.put(offer(C, 0))
    assert refused(box, B) is Reason.FLOOD
    assert len(box) == 3


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["admit", "put", "cancel", "take"])), max_size=60)
)
def test_no_limit_is_ever_passed_and_nothing_that_was_taken_is_lost(moves: list[tuple[str, str]]) -> None:
    box = Mailbox(Limits(per_peer=2, inbox=4))
    coming: Counter[str] = Counter()
    put = taken = 0
    for name, move in moves:
        sender = PeerId(name)
        if move == "admit":
            try:
                box.admit(sender, None)
                coming[name] += 1
            except Refused as error:
                assert error.reason is Reason.FLOOD  # noqa: PT017
        elif move == "take":
            taken += len(box.take())
        elif coming[name]:
            coming[name] -= 1
            if move == "put":
                box.put(offer(sender, 0))
                put += 1
            else:
                box.cancel(sender, None)
        assert len(box) + coming.total() <= 4
        assert len(box) == put - taken


def test_gather_finds_what_came_before_it_asked_in_the_order_asked() -> None:
    box = Mailbox()
    deliver(box, A, 1, round=3)
    deliver(box, B, 2, round=3)
    deliver(box, C, 3, round=4)
    assert box.missing([C, B, A], 3) == []
    assert values(box.collect([B, A, C], 3)) == [2, 1]


def test_a_second_model_for_the_same_round_replaces_the_first() -> None:
    box = Mailbox()
    deliver(box, A, 1, round=0)
    deliver(box, A, 2, round=0)
    assert values(box.collect([A], 0)) == [2]


def test_a_peer_that_is_in_a_later_round_is_not_missing_because_it_sends_before_it_goes_on() -> None:
    box = Mailbox()
    assert box.missing([A, B], 1) == [A, B]
    deliver(box, A, round=2)
    assert box.missing([A, B], 1) == [B]


def test_once_gathered_a_round_is_over() -> None:
    box = Mailbox()
    deliver(box, A, round=0)
    deliver(box, A, round=1)
    box.collect([A], 0)
    assert refused(box, B, round=0) is Reason.STALE_ROUND
    assert box.held == 1
    deliver(box, B, round=1)


def test_a_round_that_ends_while_a_model_travels_refuses_it_at_the_door() -> None:
    box = Mailbox()
    box.admit(A, 0)
    box.collect([A], 0)
    with pytest.raises(Refused) as error:
        box.put(offer(A, 1, round=0))
    assert error.value.reason is Reason.STALE_ROUND
    assert box.held == 0


def test_rounds_far_ahead_are_refused() -> None:
    box = Mailbox(Limits(ahead=3))
    deliver(box, A, round=3)
    assert refused(box, A, round=4) is Reason.FUTURE_ROUND
    box.advance(1)
    deliver(box, A, round=4)


def test_the_shelves_hold_so_many_models_in_all() -> None:
    box = Mailbox(Limits(round_models=2))
    deliver(box, A, round=0)
    deliver(box, A, round=1)
    assert refused(box, B, round=0) is Reason.FLOOD


def test_advancing_clears_the_old_shelves_and_never_goes_back() -> None:
    box = Mailbox()
    deliver(box, A, round=2)
    deliver(box, A, round=5)
    box.advance(4)
    box.advance(1)
    assert (box.round, box.held) == (4, 1)


def test_one_that_calls_my_round_stale_is_not_waited_for() -> None:
    box = Mailbox()
    box.advance(2)
    box.refused_as_stale(A)
    assert box.missing([A, B], 2) == [B]


@pytest.mark.parametrize(
    ("rounds", "ahead"),
    [({B: 7}, None), ({B: 7, C: 3}, 3), ({B: 7, C: 5}, 5), ({B: 7, C: 7}, 7)],
)
def test_one_left_behind_goes_on_where_half_of_those_heard_from_are(
    rounds: dict[PeerId, int], ahead: int | None
) -> None:
    box = Mailbox()
    for sender, round in rounds.items():
        deliver(box, sender, round=round)
    box.refused_as_stale(A)  # in round 1 at least
    assert box.round_to_catch_up(0, dict.fromkeys([A, B, C], 0)) == ahead


def test_whoever_calls_a_model_stale_and_tells_its_round_is_believed_as_far_as_models_are_taken() -> None:
    box = Mailbox(Limits(ahead=16))
    for peer, round in ((A, 5), (B, 10**12), (C, 0)):
        box.refused_as_stale(peer, round)
    assert box.round_to_catch_up(0, dict.fromkeys([A, B, C], 0)) == 5
    box.refused_as_stale(B, 10**12)
    assert box.round_to_catch_up(0, dict.fromkeys([B], 0)) == 16


def test_one_whose_models_are_taken_is_not_left_behind_by_those_ahead() -> None:
    box = Mailbox()
    deliver(box, A, round=9)
    assert box.round_to_catch_up(0, dict.fromkeys([A], 0)) is None


def test_being_left_behind_is_noticed_once() -> None:
    box = Mailbox()
    deliver(box, A, round=9)
    box.refused_as_stale(A)
    assert box.round_to_catch_up(0, dict.fromkeys([A], 0)) == 9
    assert box.round_to_catch_up(0, dict.fromkeys([A], 0)) is None


@pytest.mark.parametrize(
    ("rounds", "passed"),
    [({A: 9, B: 9}, True), ({A: 9, B: 9, C: 0}, True), ({A: 9, B: 0, C: 0}, False), ({A: 1, B: 1}, False)],
)
def test_a_round_is_passed_by_where_one_would_go_on_elsewhere_after_it(
    rounds: dict[PeerId, int], passed: bool
) -> None:
    box = Mailbox()
    for sender, round in rounds.items():
        deliver(box, sender, round=round)
    alive = dict.fromkeys(rounds, 0)
    assert not box.will_skip_ahead(0, lambda: alive)  # they may have waited for my models
    box.refused_as_stale(A)
    assert box.will_skip_ahead(0, lambda: alive) == passed
    assert (box.round_to_catch_up(0, alive) is not None) == passed
    assert not box.will_skip_ahead(0, lambda: alive)


def test_the_dead_do_not_say_where_the_swarm_is() -> None:
    box = Mailbox()
    deliver(box, A, round=9)
    deliver(box, B, round=3)
    box.refused_as_stale(A)
    assert box.round_to_catch_up(0, dict.fromkeys([B], 0)) == 3


@pytest.mark.parametrize("round", [None, 0])
def test_a_part_that_the_policy_cannot_use_is_refused_with_its_header_and_with_its_payload(
    round: int | None,
) -> None:
    box = Mailbox(Limits(per_peer=1))
    with pytest.raises(Refused, match="this policy accepts model, not head") as error:
        box.admit(A, round, "head")
    assert error.value.reason is Reason.LAYOUT
    box.admit(A, round)
    with pytest.raises(Refused):
        box.put(Offer(A, offer(A, 1).model.head, round=round))
    assert box.held == 0
    deliver(box, A, 1, round)  # its place was given back


def test_a_policy_may_take_cores_only() -> None:
    box = Mailbox(takes=("core",))
    box.admit(A, None, "core")
    box.put(Offer(A, offer(A, 1).model.core))
    assert len(box) == 1
    assert refused(box, A) is Reason.LAYOUT


def test_of_very_many_senders_those_silent_for_longest_are_forgotten() -> None:
    box = Mailbox(Limits(peers=2))
    for sender in (A, B, A, C):
        deliver(box, sender, round=5)
    box.advance(6)
    box.refused_as_stale(C)
    assert box.round_to_catch_up(0, dict.fromkeys([B], 0)) is None
    box.refused_as_stale(C)
    assert box.round_to_catch_up(0, dict.fromkeys([A], 0)) == 5


def test_a_claim_is_believed_only_as_far_as_models_are_taken() -> None:
    box = Mailbox(Limits(ahead=3))
    for peer in (A, B):
        with pytest.raises(Refused):
            box.admit(peer, 10**12)
    box.refused_as_stale(C)
    assert box.round_to_catch_up(0, dict.fromkeys([A, B, C], 0)) == 3


def test_a_second_model_for_a_round_waits_until_the_first_has_arrived() -> None:
    box = Mailbox()
    box.admit(A, 0)
    with pytest.raises(Refused) as caught:
        box.admit(A, 0)
    assert caught.value.reason is Reason.FLOOD
    box.admit(A, 1)
    box.cancel(A, 0)
    box.admit(A, 0)


def test_models_on_their_way_count_for_the_shelves() -> None:
    box = Mailbox(Limits(round_models=2))
    box.admit(A, 0)
    deliver(box, B, round=0)
    with pytest.raises(Refused) as caught:
        box.admit(C, 0)
    assert caught.value.reason is Reason.FLOOD


def test_nobody_is_waited_for_in_a_round_that_is_over() -> None:
    box = Mailbox()
    box.collect([A], 0)
    assert box.missing([A], 0) == []


def test_what_others_sent_for_a_round_comes_after_what_was_waited_for() -> None:
    box = Mailbox()
    for sender in (C, A, B):
        deliver(box, sender, 1, round=0)
    assert [o.sender for o in box.collect([B], 0, others=True)] == [B, A, C]


def test_a_policy_that_fetches_takes_nothing() -> None:
    box = Mailbox(takes=())
    assert refused(box, A) is Reason.NOT_SERVED
    assert refused(box, A, round=0) is Reason.NOT_SERVED


def test_bytes_that_wait_are_bounded_per_peer_and_in_all_but_a_single_model_may_be_larger() -> None:
    size = constant(0.0).nbytes
    box = Mailbox(Limits(per_peer=9, size=4 * size, size_per_peer=2 * size))
    box.admit(A, None, size=100 * size)  # nothing else waits
    with pytest.raises(Refused, match="bytes of your models are still waiting"):
        box.admit(A, None, size=size)
    with pytest.raises(Refused, match="bytes of models are waiting here"):
        box.admit(B, None, size=size)
    box.cancel(A, None)
    assert box.size == 0
    for sender, round in ((A, None), (A, 0), (B, None), (B, 0)):
        box.admit(sender, round, size=size)
        box.put(Offer(sender, constant(0.0), round))
    assert box.size == 4 * size
    with pytest.raises(Refused, match="bytes of models"):
        box.admit(C, None, size=size)
    box.take(1)
    box.collect([A, B], 0)
    assert box.size == size


def test_models_for_rounds_to_come_leave_room_for_those_of_this_round() -> None:
    box = Mailbox(Limits(size=100, size_per_peer=100))
    for round in range(1, 6):
        box.admit(A, round, size=10)
    with pytest.raises(Refused, match="bytes of models are waiting here"):
        box.admit(B, 1, size=10)
    for sender in (A, B, C):
        box.admit(sender, 0, size=10)
    box.advance(1)
    box.admit(B, 1, size=10)  # now it is this one


def test_the_notes_that_come_with_a_model_weigh_as_long_as_it_waits() -> None:
    box, notes = Mailbox(), {f"{i:064}": 0.5 for i in range(4096)}
    offer = Offer(A, constant(0.0), 0, notes=notes)
    box.admit(A, 0, size=offer.nbytes)
    box.put(offer)
    assert box.size == offer.nbytes > 1_000_000
    box.collect([A], 0)
    assert box.size == 0


def test_a_model_that_replaces_another_of_its_round_is_weighed_once() -> None:
    box = Mailbox()
    for _ in range(3):
        box.admit(A, 0, size=constant(0.0).nbytes)
        box.put(Offer(A, constant(0.0), 0))
    assert box.size == constant(0.0).nbytes


def test_a_round_that_is_only_rumoured_is_believed_while_it_is_told_and_not_kept() -> None:
    box = Mailbox()
    assert box.missing([A, B], 0, {A: 900}) == [B]
    assert box.missing([A, B], 0, {A: 0}) == [A, B]


def test_what_came_spoiled_is_not_waited_for_in_its_round() -> None:
    box = Mailbox()
    box.mark_unusable(A, 0)
    box.mark_unusable(B, None)
    assert box.missing([A, B], 0) == [B]
    assert box.missing([A, B], 1) == [A, B]
    box.advance(1)
    assert box.missing([A], 1) == [A]


# -- late models -----------------------------------------------------------------------------------------------


def late(rounds: int = 1) -> Mailbox:
    return Mailbox(Limits(late=rounds))


def test_a_model_that_comes_when_its_round_is_over_is_used_in_the_next() -> None:
    box = late()
    deliver(box, A, 1, round=0)
    assert values(box.collect([A, B], 0)) == [1]
    deliver(box, B, 2, round=0)
    deliver(box, A, 3, round=1)
    assert box.missing([A, C], 1) == [C]
    found = box.collect([A, C], 1)
    assert [(o.sender, o.round) for o in found] == [(A, 1), (B, 0)]
    assert box.held == box.size == 0


def test_a_late_model_gives_way_to_a_newer_one_of_its_sender() -> None:
    box = late(2)
    box.collect([A], 0)
    deliver(box, A, 1, round=0)
    deliver(box, A, 2, round=1)
    assert values(box.collect([A], 1)) == [2]
    box.collect([A], 2)
    deliver(box, A, 3, round=2)
    assert refused(box, A, round=0) is Reason.STALE_ROUND
    assert values(box.collect([], 3)) == [3]


def test_of_two_late_models_of_a_sender_the_newer_counts() -> None:
    box = late(2)
    for round in (0, 1):
        box.collect([A], round)
    deliver(box, A, 2, round=1)
    deliver(box, A, 1, round=0)
    assert values(box.collect([], 2)) == [2]


def test_a_model_that_is_too_late_is_refused_and_says_how_far_its_sender_is() -> None:
    box = late()
    heard: list[tuple[PeerId, int]] = []

    class Heard(NoObserver):
        def arrived(self, peer: PeerId, round: int) -> None:
            heard.append((peer, round))

    box.observer = Heard()
    for round in (0, 1):
        box.collect([A], round)
    assert refused(box, A, round=0) is Reason.STALE_ROUND
    deliver(box, A, round=1)
    assert heard == [(A, 0), (A, 1)]


def test_one_that_was_not_asked_or_came_in_time_cannot_come_late() -> None:
    box = late()
    deliver(box, A, round=0)
    box.collect([A], 0)
    assert refused(box, A, round=0) is Reason.STALE_ROUND  # its second voice
    assert refused(box, B, round=0) is Reason.STALE_ROUND  # nobody asked it


def test_what_came_for_a_round_that_was_left_out_is_not_taken_for_late() -> None:
    box = late()
    deliver(box, A, round=7)
    box.collect([A], 0)
    box.advance(8)  # it goes on where the others are
    assert box.collect([A], 8) == ()
    assert box.held == 0


def test_a_model_that_travels_while_its_round_ends_is_late() -> None:
    box = late()
    box.admit(A, 0)
    box.collect([A], 0)
    box.put(offer(A, 4, round=0))
    assert values(box.collect([], 1)) == [4]


def test_by_default_nothing_may_be_late() -> None:
    box = Mailbox()
    box.collect([A], 0)
    assert refused(box, A, round=0) is Reason.STALE_ROUND


def test_one_that_was_absent_believes_any_round_that_half_of_the_others_are_in() -> None:
    box = Mailbox()
    box.refused_as_stale(A)
    assert box.round_to_catch_up(0, {A: 900, B: 910, C: 5}, absent=True) == 900
    box.refused_as_stale(A)
    assert box.round_to_catch_up(0, {A: 900, B: 910, C: 5}) == 16


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "end"]), st.sampled_from([A, B, C]), st.integers(0, 3)), max_size=60
    ),
    st.integers(0, 3),
)
def test_a_sender_has_one_voice_in_a_round_and_one_model_counts_once(
    moves: list[tuple[str, PeerId, int]], bound: int
) -> None:
    """Whatever comes late: no model is used twice, none is older than the bound, and nothing stays behind."""
    box, round, used = late(bound), 0, set[int]()
    for number, (move, sender, back) in enumerate(moves):
        if move == "send" and round - back >= 0:
            try:
                deliver(box, sender, number, round=round - back)
            except Refused:
                continue
        elif move == "end":
            found = box.collect([A, B], round)
            assert len({o.sender for o in found}) == len(found)
            assert all(o.round is not None and round - o.round <= bound for o in found)
            numbers = {int(core_of(o.model)) for o in found}
            assert not numbers & used
            used |= numbers
            round += 1
    for _ in range(bound + 1):
        box.collect([], round)
        round += 1
    assert box.held == box.size == 0


def test_a_model_that_is_arriving_is_missing_though_its_sender_has_advanced() -> None:
    """Its push goes on in the background."""
    box = Mailbox()
    box.admit(A, 0)
    box.began(A, 1)
    assert box.missing([A, B], 0, {A: 1, B: 1}) == [A]
    box.cancel(A, 0)
    assert box.missing([A, B], 0, {A: 1, B: 1}) == []
