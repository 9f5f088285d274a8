"""Which calls may run at the same time."""

from __future__ import annotations

import pytest

from pfl_node.errors import Refused
from pfl_node.wire.call_slots import BURST, FRESH, LONGEST, PER_CALLER, QUIET, RESERVE, CallSlots


def test_one_caller_has_a_limited_number_of_calls() -> None:
    slots = CallSlots(1000, 1000)
    held = [slots.begin("eve", 0.0)[0] for _ in range(PER_CALLER)]
    with pytest.raises(Refused, match=f"{PER_CALLER} of your calls"):
        slots.begin("eve", 0.0)
    slots.begin("ann", 0.0)
    slots.end(held[0])
    slots.begin("eve", 0.0)


def test_a_caller_with_few_calls_is_served_although_others_have_taken_all_places() -> None:
    slots = CallSlots(PER_CALLER, 1000)
    for _ in range(PER_CALLER):
        slots.begin("eve", 0.0)
    for _ in range(RESERVE):
        slots.begin("ann", 0.0)
    with pytest.raises(Refused, match="try again later"):
        slots.begin("ann", 0.0)


def test_the_oldest_unread_call_of_the_caller_with_most_of_them_makes_room() -> None:
    slots = CallSlots(1000, 4)
    first = slots.begin("ann", 0.0)[0]
    eves = [slots.begin("eve", 0.0)[0] for _ in range(3)]
    assert slots.begin("bob", FRESH / 2)[1] is None  # they may still send
    assert slots.begin("bob", FRESH)[1] is eves[0]
    slots.heard(eves[1])
    slots.heard(eves[2])
    assert first.caller == "ann"


def test_a_burst_of_unread_calls_does_not_keep_others_out() -> None:
    slots = CallSlots(1000, 4)
    eves = [slots.begin("eve", 0.0)[0] for _ in range(4 * BURST)]
    assert slots.begin("ann", 0.0)[1] is eves[0]


def test_calls_that_send_their_message_are_not_evicted() -> None:
    slots = CallSlots(1000, 4)
    for _ in range(20):
        slots.heard(slots.begin("ann", 0.0)[0])
    assert slots.begin("bob", 100.0)[1] is None


def test_an_unread_call_is_late_when_nothing_arrives_or_after_a_long_time() -> None:
    slots = CallSlots(10, 10)
    slot = slots.begin("ann", 0.0)[0]
    assert not slots.late(slot, QUIET, active=0.0)
    assert slots.late(slot, QUIET + 1, active=0.0)
    assert not slots.late(slot, QUIET + 1, active=QUIET)  # a slow network
    assert slots.late(slot, LONGEST + 1, active=LONGEST)
    slots.heard(slot)
    assert not slots.late(slot, 1000.0, active=0.0)


def test_places_of_calls_that_ended_are_free() -> None:
    slots = CallSlots(10, 10)
    for _ in range(1000):
        slots.end(slots.begin("ann", 0.0)[0])
    assert len(slots) == 0
