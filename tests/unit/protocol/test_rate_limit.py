"""How often a peer may call, and how much work it may ask for."""

from __future__ import annotations

import pytest

from pfl_node.errors import Refused
from pfl_node.protocol.rate_limit import CALLERS, EffortLimit, RateLimit
from pfl_node.types import PeerId

YOU = PeerId("you")


def test_a_rate_is_per_peer_and_recovers() -> None:
    rate = RateLimit(2, window=60.0)
    rate.take(YOU, 0.0)
    rate.take(YOU, 1.0)
    with pytest.raises(Refused, match=r"wait 58\.0 s"):
        rate.take(YOU, 2.0)
    rate.take(PeerId("third"), 2.0)
    rate.take(YOU, 60.5)


def test_a_rate_forgets_those_who_are_silent() -> None:
    rate = RateLimit(2, window=60.0)
    for n in range(100):
        rate.take(PeerId(f"invented-{n}"), 1.0)
    rate.take(YOU, 30.0)
    rate.take(YOU, 62.0)
    assert len(rate.calls) == 1
    with pytest.raises(Refused):
        rate.take(YOU, 63.0)


def test_a_rate_counts_a_bounded_number_of_names() -> None:
    rate = RateLimit(limit=1)
    for i in range(CALLERS + 10):
        rate.take(PeerId(f"invented{i}"), now=0.0)
    assert len(rate.calls) == CALLERS
    with pytest.raises(Refused):
        rate.take(PeerId(f"invented{CALLERS}"), now=1.0)


def test_the_time_that_work_takes_is_bounded_per_peer_and_recovers() -> None:
    effort = EffortLimit(most=3.0, window=60.0)
    for now in (0.0, 20.0):
        effort.check(YOU, now)
        effort.done(YOU, 0.9, now)
    with pytest.raises(Refused, match=r"your models took 1\.8 s of the last 60 s"):
        effort.check(YOU, 22.0)
    effort.check(PeerId("third"), 22.0)
    effort.check(YOU, 60.5)  # the first is forgotten


def test_the_time_that_work_takes_is_bounded_for_all_peers_together() -> None:
    effort = EffortLimit(most=30.0, window=60.0)
    effort.done(PeerId("first"), 0.8, 0.0)
    effort.check(YOU, 0.0)
    with pytest.raises(Refused, match="models of other peers use all the time"):
        effort.check(YOU, 0.0, under_way=1)  # it will take as long
    effort.done(PeerId("second"), 0.8, 0.0)
    with pytest.raises(Refused, match="models of other peers use all the time"):
        effort.check(YOU, 1.0)
    effort.check(YOU, 2.5)  # half of the time is for others
