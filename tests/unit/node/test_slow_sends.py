"""When a node says that a link is too slow for its models."""

from __future__ import annotations

import pytest

from pfl_node.errors import PeerError, PeerGone, PeerTimedOut, Reason, Refused
from pfl_node.node.slow_sends import TOO_SLOW, SlowSends
from pfl_node.settings.schema import keys
from pfl_node.types import PeerId

BOB, EVE = PeerId("bob"), PeerId("eve")
LATE = PeerTimedOut(BOB, "the stream stalled")
CUT = Refused(Reason.TRUNCATED, "slower than 4000 bytes per second", BOB)
ARRIVED = 100_000  # bytes


def news(*answers: int | PeerError | None) -> list[int]:
    """At which of these answers the node says so."""
    sends = SlowSends()
    return [n for n, answer in enumerate(answers) if sends.is_news(BOB, answer)]


@pytest.mark.parametrize("late", [LATE, CUT])
def test_the_third_model_that_does_not_arrive_in_time_is_news_once(late: PeerError) -> None:
    assert news(late, late, late, late, late, late, late) == [2]


def test_most_of_the_sends_must_time_out() -> None:
    assert news(LATE, ARRIVED, LATE, ARRIVED, LATE, ARRIVED, LATE, ARRIVED) == []
    assert news(LATE, LATE, ARRIVED, LATE, LATE) == [4]


@pytest.mark.parametrize("other", [PeerGone(BOB, "unavailable"), Refused(Reason.STALE_ROUND, "", BOB), None])
def test_a_peer_that_is_down_or_refuses_says_nothing_about_the_link(other: PeerError | None) -> None:
    assert news(other, other, other, other) == []


def test_peers_are_counted_apart() -> None:
    sends = SlowSends()
    assert [sends.is_news(peer, LATE) for peer in (BOB, EVE, BOB, EVE, BOB)] == [False] * 4 + [True]


def test_every_setting_in_the_hint_exists() -> None:
    named = {word.strip("(),;.") for word in TOO_SLOW.split() if "wire." in word}
    assert len(named) == 6
    assert named <= set(keys())
