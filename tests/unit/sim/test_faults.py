"""Faults: their text form, its errors, and their effect at a given time."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from pfl_node.errors import ConfigError
from pfl_node.sim.faults import (
    FORMS,
    Conditions,
    Crash,
    Cut,
    Delay,
    Fault,
    Join,
    Loss,
    Partition,
    Restart,
    Skew,
    Slow,
    check_faults,
    format_fault,
    node_ids,
    parse_faults,
)
from pfl_node.types import PeerId

IDS = node_ids(10)
N0, N1, N2, N3 = IDS[:4]


def ids(*names: str) -> frozenset[PeerId]:
    return frozenset(PeerId(n) for n in names)


def test_ids_sorted_as_text_are_sorted_as_numbers() -> None:
    assert node_ids(3) == ("n000", "n001", "n002")
    many = node_ids(1001)
    assert many[-1] == "n1000"
    assert list(many) == sorted(many)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crash:n003@12.5", Crash(12.5, N3)),
        ("join:n002@30", Join(30.0, N2)),
        ("loss:0.02", Loss(0.02)),
        ("loss:0.02@10-40", Loss(0.02, 10.0, 40.0)),
        ("delay:0.1@5", Delay(0.1, 5.0, inf)),
        ("slow:n003x4", Slow(N3, 4.0)),
        ("slow:n003x4@1-2", Slow(N3, 4.0, 1.0, 2.0)),
        ("partition:n000-n002|rest@10-40", Partition(10.0, (ids("n000", "n001", "n002"),), 40.0)),
        ("partition:n000,n002|n001@10", Partition(10.0, (ids("n000", "n002"), ids("n001")), inf)),
        ("cut:n000,n001>n002@10-40", Cut(10.0, ids("n000", "n001"), ids("n002"), 40.0)),
        ("cut:rest>n002@10", Cut(10.0, frozenset(IDS) - {N2}, ids("n002"))),
        ("skew:n003x1.5", Skew(N3, 1.5)),
        ("skew:n003+30@10", Skew(N3, 1.0, 30.0, 10.0)),
        ("skew:n003x0.5+3@1-2", Skew(N3, 0.5, 3.0, 1.0, 2.0)),
    ],
)
def test_a_fault_is_read_from_its_text(text: str, fault: Fault) -> None:
    assert parse_faults([text], IDS) == (fault,)


@pytest.mark.parametrize("form", [text for form in FORMS.values() for text in form.split(" or ")])
def test_a_fault_written_as_text_is_read_as_the_same_fault(form: str) -> None:
    before = [Crash(0.0, N3)] if form.startswith("restart") else []
    (fault,) = parse_faults([*map(format_fault, before), form], IDS)[len(before) :]
    assert parse_faults([*map(format_fault, before), format_fault(fault)], IDS)[len(before) :] == (fault,)


def test_every_form_that_an_error_shows_can_be_read() -> None:
    texts = [text for form in FORMS.values() for text in form.split(" or ")]
    assert len(parse_faults(texts, IDS)) == len(texts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crahs:n003@1", "unknown kind 'crahs'; did you mean 'crash'?"),
        ("crash", "unknown kind 'crash'"),
        ("crash:n003", "write it like crash:n003@12.5"),
        ("crash:n003@soon", "write it like crash:n003@12.5"),
        ("crash:n099@1", "there is no node 'n099'; did you mean"),
        ("crash:n003@-1", "the time is -1 s"),
        ("crash:n003@inf", "it must be zero or more"),
        ("restart:n003@20", "n003 is not down at 20; crash it first"),
        ("loss:2", "the rate is 2; it must be between 0 and 1"),
        ("loss:nan", "it must be between 0 and 1"),
        ("loss:0.1@40-10", "the end, 10 s, is not after the start, 40 s"),
        ("delay:-1", "it must be zero or more"),
        ("slow:n003", "write it like slow:n003x4"),
        ("slow:n003x0", "it must be above zero"),
        ("partition:n000-n004|rest", "write it like partition:"),
        ("partition:rest@1-2", "write it like partition:"),
        ("partition:n004-n000|rest@1-2", "is not a range of nodes; there are n000 to n009"),
        ("partition:n000-n004|n004@1-2", "a node is in two groups"),
        ("cut:n000>n001", "write it like cut:"),
        ("cut:rest>rest@1", "write it like cut:"),
        ("cut:n000-n002>n002@1-2", "a node is on both sides"),
        ("cut:n000>n099@1-2", "there is no node 'n099'"),
        ("skew:n003", "write it like skew:"),
        ("skew:n003x0", "the rate is 0; it must be above zero"),
        ("skew:n003+-3", "the jump is -3 s; it must be zero or more"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_faults([text], IDS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "faults",
    [
        (Crash(1.0, N0), Crash(2.0, N0)),
        (Crash(1.0, N0), Restart(2.0, N0), Restart(3.0, N0)),
        (Join(1.0, N0), Join(2.0, N0)),
        (Crash(1.0, N0), Join(2.0, N0)),
    ],
)
def test_what_cannot_happen_one_after_the_other_is_refused(faults: tuple[Fault, ...]) -> None:
    with pytest.raises(ConfigError):
        check_faults(faults, IDS)


def test_a_node_may_crash_and_restart_again_and_again() -> None:
    check_faults((Crash(1.0, N0), Restart(2.0, N0), Crash(3.0, N0), Restart(4.0, N0)), IDS)


# -- effects over time -------------------------------------------------------------------------------------------


def test_a_partition_stands_between_groups_for_its_time() -> None:
    conditions = Conditions([Partition(10.0, (ids("n000"), ids("n001")), 20.0)])
    assert not conditions.blocked(N0, N1, 9.9)
    assert conditions.blocked(N0, N1, 10.0)
    assert conditions.blocked(N1, N2, 15.0)
    assert not conditions.blocked(N2, N3, 15.0)  # nodes in no group stay together
    assert not conditions.blocked(N0, N1, 20.0)


def test_a_cut_stops_one_direction_only() -> None:
    conditions = Conditions([Cut(10.0, ids("n000"), ids("n001"), 20.0)])
    assert conditions.blocked(N0, N1, 15.0)
    assert not conditions.blocked(N1, N0, 15.0)
    assert not conditions.blocked(N0, N2, 15.0)
    assert not conditions.blocked(N0, N1, 20.0)


def test_losses_delays_and_slowness_add_up_while_they_last() -> None:
    faults: list[Fault] = [
        Delay(0.1),
        Delay(0.2, 5.0, 6.0),
        Slow(N0, 2.0),
        Slow(N0, 3.0, 5.0, 6.0),
        Loss(1.0, 5.0, 6.0),
    ]
    conditions, random = Conditions(faults), Random(0)

    def chance(_: int) -> float:
        return random.random()

    assert conditions.delay(0.0) == pytest.approx(0.1)
    assert conditions.delay(5.0) == pytest.approx(0.3)
    assert (conditions.slowness(N0, 0.0), conditions.slowness(N0, 5.0), conditions.slowness(N1, 5.0)) == (
        2.0,
        6.0,
        1.0,
    )
    assert (conditions.loses(0.0, chance), conditions.loses(5.0, chance)) == (False, True)


def test_about_the_given_share_is_lost() -> None:
    conditions, random = Conditions([Loss(0.2)]), Random(0)
    lost = sum(conditions.loses(0.0, lambda _: random.random()) for _ in range(10_000))
    assert 1800 < lost < 2200
