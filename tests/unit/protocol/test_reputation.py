"""What counts against a peer: it fades, it leads to quarantine, and that ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.protocol.guard.reputation import LONGEST, PEERS, WEIGHTS, Reputations
from pfl_node.settings.sections import GuardSettings
from pfl_node.types import PeerId

A, B = PeerId("a"), PeerId("b")
RULES = GuardSettings(limit=3.0, half_life=100.0, quarantine=60.0)


def test_the_offence_that_reaches_the_limit_begins_a_quarantine_that_ends() -> None:
    conduct = Reputations(RULES)
    assert [conduct.count(A, 1.0, now=0.0) for _ in range(3)] == [None, None, 60.0]
    assert conduct.left(A, 10.0) == 50.0
    assert conduct.quarantined(10.0) == {A: 50.0}
    assert conduct.left(A, 60.0) == 0.0
    assert conduct.left(B, 10.0) == 0.0


def test_what_counts_against_a_peer_is_half_after_a_half_life() -> None:
    conduct = Reputations(RULES)
    conduct.count(A, 2.0, now=0.0)
    assert conduct.against(100.0) == {A: 1.0}
    assert conduct.count(A, 1.9, now=100.0) is None


def test_after_a_quarantine_less_is_forgiven_and_the_next_one_is_longer() -> None:
    conduct, now, spans = Reputations(RULES), 0.0, []
    for _ in range(8):
        seconds = None
        while seconds is None:
            seconds = conduct.count(A, 1.0, now)
        spans.append(seconds)
        now += seconds
    assert spans[:5] == [60.0, 120.0, 240.0, 480.0, 960.0]
    assert max(spans) == 60.0 * LONGEST


def test_one_that_did_nothing_wrong_for_long_is_as_good_as_new() -> None:
    conduct = Reputations(RULES)
    assert conduct.count(A, 5.0, now=0.0) == 60.0
    assert conduct.count(A, 5.0, now=600.0) == 120.0
    assert conduct.count(A, 5.0, now=720.0 + 20 * RULES.half_life) == 60.0


def test_nothing_counts_during_a_quarantine_and_zero_seconds_mean_never() -> None:
    conduct = Reputations(RULES)
    conduct.count(A, 5.0, now=0.0)
    assert conduct.count(A, 5.0, now=1.0) is None
    assert conduct.left(A, 1.0) == 59.0
    never = Reputations(GuardSettings(quarantine=0))
    assert [never.count(A, 5.0, now=0.0) for _ in range(3)] == [None] * 3
    assert never.left(A, 0.0) == 0.0


def test_invented_names_do_not_pile_up_and_do_not_free_who_is_in_quarantine() -> None:
    conduct = Reputations(RULES)
    conduct.count(A, 5.0, now=0.0)
    for i in range(PEERS + 10):
        conduct.count(PeerId(f"x{i}"), 0.1, now=1.0)
    assert len(conduct.dump()) == PEERS
    assert conduct.left(A, 1.0) > 0


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from(sorted(WEIGHTS.values())), st.floats(0, 500)),
        max_size=60,
    )
)
def test_one_peers_offences_never_touch_another_and_a_copy_goes_on_alike(
    offences: list[tuple[PeerId, float, float]],
) -> None:
    both, only, now = Reputations(RULES), Reputations(RULES), 0.0
    for peer, weight, wait in offences:
        now += wait
        both.count(peer, weight, now)
        if peer == A:
            only.count(peer, weight, now)
    assert both.left(A, now) == only.left(A, now)
    assert both.against(now).get(A) == only.against(now).get(A)
    copy = Reputations(RULES)
    copy.load(both.dump())
    assert copy.count(B, 1.0, now + 1) == both.count(B, 1.0, now + 1)
    assert all(score < RULES.limit for score in both.against(now + 1).values())
