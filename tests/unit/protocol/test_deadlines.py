"""How long a round waits for whom."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.protocol.deadlines import (
    MIN_HISTORY,
    PEERS,
    SILENT,
    WINDOW,
    Deadline,
    Deadlines,
    PeerTiming,
    SendDeadlines,
    median,
    suffices,
)
from pfl_node.settings import RoundSettings
from pfl_node.types import PeerId

A, B = PeerId("a"), PeerId("b")


class WaitingNode:
    """Rounds of a node whose own part takes a second and who then waits for A. Time is handed in."""

    def __init__(self, bounds: RoundSettings | None = None, own: float = 1.0, most: float | None = None) -> None:
        self.now = 0.0
        self.round = 0
        self.own = own
        self.most = most
        self.deadlines = Deadlines(bounds or RoundSettings(), 0.0)
        self.to_come: list[tuple[float, int]] = []  # late models of A: when, for which round

    def deadline(self) -> Deadline:
        """What the waiting for A would be in this round."""
        return self.deadlines.enter(self.round, self.now + self.own, self.most)

    @property
    def wait(self) -> float:
        return self.deadline().until(A) - self.now - self.own

    def lives(self, needed: float | None) -> bool:
        """A round in which A needs so long from its beginning; None: nothing comes. True: it came in time."""
        began, waiting = self.now, self.now + self.own
        deadline = self.deadlines.enter(self.round, waiting, self.most)
        end = deadline.until(A) if self.deadlines.should_wait(A, self.round) else waiting
        came = None if needed is None else began + needed
        in_time = came is not None and came <= end
        self.now = max(waiting, came) if in_time and came is not None else end
        self._hear()
        if in_time and came is not None:
            self.deadlines.arrived(A, self.round, came)
        elif came is not None:
            self.to_come.append((came, self.round))
        waited = self.deadlines.should_wait(A, self.round)
        self.deadlines.over(self.round, [A], [A] if waited and not in_time else [], self.now)
        self.round += 1
        return in_time

    def _hear(self) -> None:
        for when, round in [late for late in self.to_come if late[0] <= self.now]:
            self.deadlines.arrived(A, round, when)
            self.to_come.remove((when, round))


def knowing(*needed: float, **given: float | None) -> WaitingNode:
    life = WaitingNode(**given)  # type: ignore[arg-type]
    for seconds in needed:
        life.lives(seconds)
    return life


def test_until_enough_is_known_of_a_peer_it_is_waited_for_as_long_as_possible() -> None:
    assert [knowing(*[1.0] * n).wait for n in range(MIN_HISTORY)] == [10.0] * MIN_HISTORY


def test_what_pushes_waited_in_vain_is_taken_off_the_waiting_of_that_round() -> None:
    life = WaitingNode()
    life.deadlines.spent(3.0)
    life.deadlines.spent(1.0)
    assert life.wait == 6.0
    life.lives(None)
    assert life.wait == 10.0


def test_a_peer_that_is_always_quick_is_waited_for_as_little_as_possible() -> None:
    assert knowing(1, 1, 1, 1).wait == 2.0


def test_the_deadline_is_the_median_and_some_median_deviations_from_the_beginning_of_the_round() -> None:
    # median 4; the deviations 1, 1, 0, 1, 2 have the median 1, a quarter of 4: 4 + 4 * 1, of which 1 is over
    assert knowing(3, 5, 4, 5, 2).wait == pytest.approx(4 + 4 * 1 - 1)


def test_nobody_is_believed_to_be_as_regular_as_clockwork() -> None:
    assert knowing(3, 3, 3, 3).wait == pytest.approx(3 + 4 * 0.75 - 1)


def test_one_that_needed_longer_at_last_is_waited_for_longer_at_once() -> None:
    assert knowing(1, 1, 1, 1, 2.5).wait == pytest.approx(2.5 + 4 * 2.5 / 4 - 1)
    assert knowing(1, 1, 1, 1, 2.5, 1).wait == 2.0


def test_the_own_part_of_a_round_is_no_part_of_what_a_peer_needs() -> None:
    """It trains for 6 s as its peers do, and then once for 1 s: they still get their time."""
    life = knowing(6, 6, 6, 6, own=6.0)
    assert life.wait == pytest.approx(6.0)
    life.own = 1.0
    assert life.wait == 10.0


def test_a_peer_whose_models_are_here_before_the_round_begins_needs_nothing() -> None:
    deadlines = Deadlines(RoundSettings(), 0.0)
    for round in range(MIN_HISTORY):
        deadlines.arrived(A, round, 0.0)
    for round in range(MIN_HISTORY):
        deadlines.enter(round, float(round))
        deadlines.over(round, [A], [], float(round))
    assert deadlines.enter(9, 100.0).until(A) == 102.0


def test_one_that_did_not_come_in_time_needed_at_least_that_long_and_its_late_model_says_how_long() -> None:
    life = knowing(3, 3, 3, 3)  # 6 s from the beginning
    assert not life.lives(8.0)
    assert life.wait == 10.0  # 2 * 6 would be more
    assert life.lives(3.0)  # meanwhile the late one has come
    assert not life.to_come
    assert life.lives(3.0)


def test_a_deadline_that_was_too_short_after_a_slowdown_of_all_grows_at_once() -> None:
    life = knowing(1, 1, 1, 1, 1, 1, 1, 1, 1)
    came = [life.lives(5.0) for _ in range(10)]
    assert came == [False] + [True] * 9


def test_one_that_needs_longer_than_is_ever_waited_is_not_worth_the_time() -> None:
    life = knowing(*[30.0] * (2 * WINDOW))
    while life.to_come:
        life.lives(None)
    assert life.wait == 2.0


def test_a_peer_that_says_nothing_for_some_rounds_is_not_waited_for_until_something_of_it_comes() -> None:
    life = knowing(1, 1, 1, 1)
    for _ in range(SILENT):
        assert life.deadlines.should_wait(A, life.round)
        life.lives(None)
    assert not life.deadlines.should_wait(A, life.round)
    life.deadlines.arrived(A, life.round + 3, life.now)
    assert life.deadlines.should_wait(A, life.round)


def test_a_model_of_a_forgotten_round_is_a_sign_of_life_and_tells_nothing_else() -> None:
    life = knowing(1, 1, 1, 1, *[None] * SILENT)  # type: ignore[arg-type]
    before = life.wait
    life.deadlines.arrived(A, -7, life.now)
    assert life.deadlines.should_wait(A, life.round)
    assert life.wait == before


def test_one_given_up_early_because_others_were_enough_is_not_taken_for_quick() -> None:
    timing = PeerTiming()
    for round in range(5):
        timing.record_time(round, 8.0)
    timing.record_timeout(5, 1.0)
    assert timing.usual == 8.0
    assert timing.deadline(4.0) == pytest.approx(16.0)


def test_after_a_pause_of_my_own_one_round_has_longer_deadlines_and_then_all_is_as_before() -> None:
    life = knowing(1, 1, 1, 1)
    life.own = 300.0
    life.lives(300.0)
    life.own = 1.0
    assert life.wait == 10.0
    life.lives(1.0)
    assert life.wait == 2.0


def test_a_policys_own_bound_is_kept_and_what_it_gives_the_unknown_everybody_gets() -> None:
    assert knowing(most=600.0).wait == 600.0
    assert knowing(1, 1, 1, 1, most=600.0).wait == 10.0
    assert knowing(40, 40, 40, 40, most=600.0).wait == pytest.approx(79.0)
    assert knowing(1, 1, 1, 1, most=0.5).wait == 0.5


def test_where_the_least_is_the_most_nothing_adapts() -> None:
    fixed = RoundSettings(patience=7.0, least=7.0)
    assert knowing(1, 1, 1, 1, bounds=fixed).wait == 7.0  # type: ignore[arg-type]
    assert knowing(bounds=RoundSettings(patience=0.1)).wait == pytest.approx(0.1)  # type: ignore[arg-type]


def test_of_very_many_peers_those_silent_for_longest_are_forgotten() -> None:
    deadlines = Deadlines(RoundSettings(), 0.0)
    crowd = [PeerId(f"p{i}") for i in range(PEERS + 1)]
    for round in range(MIN_HISTORY):
        deadline = deadlines.enter(round, 1.0)
        for peer in crowd:
            deadlines.arrived(peer, round, 0.0)
        deadlines.over(round, crowd, [], 1.0)
    assert len([p for p in crowd if deadline.until(p) == 3.0]) <= PEERS


few = settings(max_examples=40)  # each is a whole life
needs = st.one_of(st.none(), st.floats(0, 40))
seconds = st.floats(0.1, 20)
bounds = st.builds(RoundSettings, patience=seconds, least=seconds, spread=st.floats(0.1, 10))


@few
@given(bounds, st.lists(needs, max_size=40), st.floats(0, 30), st.one_of(st.none(), st.floats(0.1, 100)))
def test_whatever_happens_the_deadline_stays_within_its_bounds(
    bounds: RoundSettings, history: list[float | None], own: float, most: float | None
) -> None:
    life = WaitingNode(bounds, own, most)
    for needed in history:
        life.lives(needed)
        upper = bounds.patience if most is None else most
        lower = min(upper, bounds.least if most is None else max(bounds.least, bounds.patience))
        assert lower - 1e-6 <= life.wait <= upper + 1e-6


@few
@given(st.lists(needs, max_size=40), st.floats(0, 10))
def test_nobody_who_can_come_in_time_is_locked_out_whatever_was_before(
    history: list[float | None], needed: float
) -> None:
    """From now on it needs the same in every round, and less than the most that is waited: it is in all of them
    after some."""
    life = WaitingNode(own=0.5)
    for before in history:
        life.lives(before)
    came = [life.lives(needed) for _ in range(90)]
    assert all(came[-20:])


@given(st.lists(st.floats(0, 20), min_size=MIN_HISTORY, max_size=WINDOW), st.floats(0, 5))
def test_who_needs_longer_in_every_round_gets_no_less_time(needed: list[float], more: float) -> None:
    quick, slow = PeerTiming(), PeerTiming()
    for round, seconds in enumerate(needed):
        quick.record_time(round, seconds)
        slow.record_time(round, seconds + more)
    assert slow.deadline(4.0) >= quick.deadline(4.0) - 1e-9


@given(st.lists(st.floats(0, 20), min_size=MIN_HISTORY, max_size=WINDOW), st.floats(0.1, 8), st.floats(0, 8))
def test_a_larger_spread_never_waits_shorter(needed: list[float], spread: float, more: float) -> None:
    timing = PeerTiming()
    for round, seconds in enumerate(needed):
        timing.record_time(round, seconds)
    assert timing.deadline(spread + more) >= timing.deadline(spread) >= timing.usual


@pytest.mark.parametrize(("values", "middle"), [([3.0], 3.0), ([1.0, 2.0], 2.0), ([5.0, 1.0, 2.0], 2.0)])
def test_of_an_even_number_the_upper_one_is_the_median(values: list[float], middle: float) -> None:
    assert median(values) == middle


@pytest.mark.parametrize(
    ("here", "missing", "quorum", "enough"),
    [
        (0, 0, 1.0, True),
        (3, 1, 1.0, False),
        (4, 0, 1.0, True),
        (3, 1, 0.75, True),
        (2, 2, 0.75, False),
        (0, 4, 0.01, False),
        (1, 3, 0.01, True),
        (3, 7, 0.3, True),  # 0.3 * 10 is a little more than 3
    ],
)
def test_a_quorum_is_a_share_of_those_who_came_or_can_still_come(
    here: int, missing: int, quorum: float, enough: bool
) -> None:
    assert suffices(here, missing, quorum) is enough


def test_one_that_never_took_a_model_holds_no_round_up_after_some_pushes_in_vain_until_it_does() -> None:
    receipts = SendDeadlines(RoundSettings())
    for number in range(SILENT):
        assert receipts.seconds([A]) == inf
        receipts.failed(A, number, 5.0)
    assert receipts.seconds([A]) == 0.0
    receipts.answered(A, SILENT, 0.1)
    assert receipts.seconds([A]) == inf


def test_a_push_that_fails_at_once_holds_nobody_up_and_tells_nothing() -> None:
    receipts = SendDeadlines(RoundSettings())
    for number in range(2 * MIN_HISTORY):
        receipts.failed(A, number, 0.1)
    assert receipts.seconds([A]) == inf


def test_one_that_refuses_a_push_is_there_and_holds_rounds_up_again() -> None:
    receipts = SendDeadlines(RoundSettings())
    for number in range(MIN_HISTORY):
        receipts.answered(A, number, 3.0)
    usual = receipts.usual(A)
    assert receipts.seconds([A]) == usual >= 6.0
    for number in range(SILENT):
        receipts.given_up(A, MIN_HISTORY + number, usual / 4)
    assert receipts.seconds([A]) == 0.0
    assert receipts.usual(A) == usual
    receipts.refused(A)
    assert receipts.seconds([A]) == usual
    assert receipts.usual(B) == 0.0


# -- models that are arriving ----------------------------------------------------------------------------------


def test_a_model_that_is_arriving_is_awaited_beyond_the_deadline() -> None:
    """1 Mbit/s and 10 MB: 80 s."""
    deadlines = Deadlines(RoundSettings(), 0.0)
    deadline = deadlines.enter(0, 1.0)
    assert deadline.until(A) == 11.0
    deadlines.arrives(A, 0, 2.0)
    assert (deadline.until(A), deadline.until(B)) == (302.0, 11.0)
    deadlines.arrived(A, 0, 82.0)
    assert deadline.until(A) == 11.0


def test_what_the_line_takes_is_no_part_of_what_a_peer_needs() -> None:
    deadlines = Deadlines(RoundSettings(), 0.0)
    for round in range(MIN_HISTORY):
        deadlines.arrives(A, round, 100.0 * round + 1.5)
        deadlines.arrived(A, round, 100.0 * round + 90.0)
        deadlines.enter(round, 100.0 * round + 1.0)
        deadlines.over(round, [A], [], 100.0 * (round + 1))
    assert deadlines.timings[A].usual == 1.5


def test_a_transfer_that_broke_off_gets_the_time_of_an_unknown_peer_to_continue() -> None:
    deadlines = Deadlines(RoundSettings(), 0.0)
    deadline = deadlines.enter(0, 1.0)
    deadlines.arrives(A, 0, 2.0)
    deadlines.stopped(A, 0, 50.0, resumes=True)
    assert deadline.until(A) == 60.0
    deadlines.arrives(A, 0, 55.0)
    assert deadline.until(A) == 302.0  # since it first began
    deadlines.stopped(A, 0, 70.0, resumes=False)
    assert deadline.until(A) == 11.0


def test_a_peer_that_is_not_worth_waiting_for_is_when_its_model_arrives() -> None:
    life = knowing(1, 1, 1, 1, *[None] * SILENT)  # type: ignore[arg-type]
    assert not life.deadlines.should_wait(A, life.round)
    life.deadlines.arrives(A, life.round, life.now)
    assert life.deadlines.should_wait(A, life.round)
    assert not life.deadlines.should_wait(A, life.round + 1)


def test_a_round_that_is_over_forgets_what_broke_off() -> None:
    deadlines = Deadlines(RoundSettings(), 0.0)
    deadlines.arrives(A, 0, 1.0)
    deadlines.arrives(B, 0, 1.0)
    deadlines.stopped(A, 0, 2.0, resumes=True)
    deadlines.over(0, [A, B], [A], 3.0)
    assert deadlines.arrives_until(A, 0) == -inf
    assert deadlines.arrives_until(B, 0) == 301.0  # still on its way, and may be used late
    deadlines.stopped(B, 0, 9.0, resumes=True)
    assert deadlines.arrives_until(B, 0) == -inf
