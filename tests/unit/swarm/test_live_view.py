"""What is shown while a swarm runs, on a terminal and elsewhere."""

from __future__ import annotations

from pfl_node.swarm.baseline import Baseline, LocalRun
from pfl_node.swarm.live_view import EVERY, LiveView, StatusLines, phase_of, showing
from pfl_node.swarm.supervisor import Swarm
from tests.unit.swarm.made_swarms import after, drawn, paper, settings, started, swarm, text

SHOW_CURSOR, ERASE_LINE = "\x1b[?25h", "\x1b[2K"
KINDS = {0: "upright", 1: "upside down"}


def screen(made: Swarm, *, baseline: Baseline | None = None, width: int = 100, height: int = 50) -> list[str]:
    view = LiveView(made, kinds=KINDS, baseline=baseline)
    return drawn(view, width=width, height=height, terminal=True).splitlines()


def comparison(nodes: int) -> Baseline:
    return Baseline(settings(rounds=10), nodes)


# -- where it is -----------------------------------------------------------------------------------------------


def test_from_the_beginning_it_says_what_is_going_on() -> None:
    made = swarm(4)
    (line,) = screen(made)
    assert "starting 2 processes: importing torch takes a few seconds" in line
    made.imported = 1
    assert "importing torch" in phase_of(made)
    made.imported = 2
    assert phase_of(made) == "nodes are joining: 0 of 4"
    made.slots[0].node = "id0"
    assert phase_of(made) == "nodes are joining: 1 of 4"
    assert phase_of(started(made)) == "training with pens"
    made.stopping = True
    assert "press Ctrl-C again" in phase_of(made)


def test_one_process_is_called_one() -> None:
    assert "starting 1 process:" in phase_of(swarm(1, workers=8))


# -- the table -------------------------------------------------------------------------------------------------


def test_every_node_of_a_small_swarm_has_a_row() -> None:
    made = after(started(swarm(4)), 3, **{"from": ["id1", "id0", "id1"]})
    made.slots[2].records["neighbours"] = {"ids": ["id3"]}
    lines = screen(made)
    assert lines[0] == "pens on digits: 4 nodes in 2 processes"
    assert lines[1].split() == ["node", "sees", "digits", "round", "validation", "learns", "with"]
    assert lines[2].split() == ["node-000", "upright", "3/10", "50.0", "%", "tries", "00", "01"]
    assert lines[4].split() == ["node-002", "upside", "down", "3/10", "50.0", "%", "found", "03"]
    assert "training with pens" in lines[6]
    assert "30 % of the rounds" in lines[6]


def test_heads_are_shown_and_a_column_with_nothing_to_say_is_not() -> None:
    facade = after(started(swarm(2, policy={"name": "facade"})), 6, head=1)
    assert screen(facade)[2].endswith("those with head 1")
    el = after(started(swarm(2, policy={"name": "el"})), 6)
    assert "learns with" not in screen(el)[1]


def test_a_large_swarm_is_shown_in_groups_that_fit_the_terminal() -> None:
    made = after(started(swarm(100)), 2)
    made.slots[0].round = 1
    lines = screen(made, height=30)
    assert len(lines) <= 30
    assert lines[2].split()[:4] == ["node-000", "to", "004", "upright"]
    assert "1-2/10" in lines[2]


def test_no_line_is_wider_than_the_terminal() -> None:
    made = after(started(swarm(60)), 2, **{"from": [f"id{i}" for i in range(60)]})
    for slot in made.slots:
        slot.records["neighbours"] = {"ids": [f"id{i}" for i in range(60)]}
    baseline = comparison(60)
    baseline.begun = True
    for width in (80, 100):
        assert max(map(len, screen(made, width=width, height=80, baseline=baseline))) <= width
    assert max(map(len, screen(made, width=200, height=80, baseline=baseline))) <= 100


def test_a_run_without_an_end_shows_how_far_it_is() -> None:
    lines = screen(after(started(swarm(2, rounds=None)), 7))
    assert "7/" not in lines[2]
    assert "14 rounds in all" in lines[-1]


def test_a_task_without_accuracy_shows_its_loss() -> None:
    made = after(started(swarm(2)), 1, val_accuracy=float("nan"), val_loss=0.25)
    assert "loss 0.25" in screen(made)[2]
    assert "-" in screen(after(made, 1, val_accuracy=None, val_loss=None))[2].split()


def test_the_comparison_has_a_bar_and_can_be_skipped_in_the_end() -> None:
    made, baseline = after(started(swarm(2)), 10), comparison(2)
    assert "alone" not in "".join(screen(made, baseline=baseline))
    baseline.begun, baseline.rounds_done = True, 5
    assert "the same nodes alone, for comparison" in screen(made, baseline=baseline)[-1]
    assert "25 % of the rounds" in screen(made, baseline=baseline)[-1]
    assert "Ctrl-C" not in screen(made, baseline=baseline)[-1]
    for slot in made.slots:
        slot.result = {}
    assert "Ctrl-C skips this" in screen(made, baseline=baseline)[-1]
    baseline.alone = LocalRun(0.5, 1.0, {})
    assert "Ctrl-C" not in screen(made, baseline=baseline)[-1]


# -- plain lines -----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_tell_the_start_and_every_tenth() -> None:
    made, said, clock = swarm(10), list[str](), Clock()
    lines = StatusLines(made, None, said.append, clock)
    assert said == ["starting 2 processes: importing torch takes a few seconds"]
    clock.now += 4
    started(made)
    lines.update()
    lines.update()
    assert said[1:] == ["10 nodes ready after 4 s"]
    for rounds in range(1, 11):
        after(made, rounds)
        lines.update()
        lines.update()
    assert len(said) == 12
    assert said[2] == "10 % of the rounds after 4 s, validation 50.0 %"
    assert said[-1] == "100 % of the rounds after 4 s, validation 50.0 %"


def test_a_run_without_an_end_says_a_line_now_and_then() -> None:
    made, said, clock = started(swarm(3, rounds=None)), list[str](), Clock()
    lines = StatusLines(made, None, said.append, clock)
    for rounds in range(1, 100):
        clock.now += EVERY / 10
        after(made, rounds)
        lines.update()
    assert said[1] == "3 nodes ready after 1 s"
    assert len(said) == 2 + 9
    assert said[2].startswith("30 rounds in all after 10 s")


def test_plain_lines_tell_what_is_waited_for_in_the_end() -> None:
    made, said, baseline = after(started(swarm(2)), 10), list[str](), comparison(2)
    lines = StatusLines(made, baseline, said.append, Clock())
    for slot in made.slots:
        slot.result = {}
    baseline.rounds_done = 10
    lines.update()
    lines.update()
    assert said[-1] == "the same nodes alone, for comparison: 50 % of the rounds"
    assert len([line for line in said if "alone" in line]) == 1


def test_plain_lines_tell_that_it_stops() -> None:
    made, said = started(swarm(2)), list[str]()
    lines = StatusLines(made, None, said.append, Clock())
    made.stopping = True
    lines.update()
    assert said[-1].startswith("stopping")


# -- which of the two ------------------------------------------------------------------------------------------


def test_elsewhere_than_on_a_terminal_there_are_no_control_codes() -> None:
    made, console = swarm(2), paper(terminal=False)
    with showing(made, console, kinds=KINDS, baseline=None, live=True):
        started(made)
        made.on_event({"event": "started"})
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 nodes ready" in written
    assert "\x1b" not in written


def test_on_a_terminal_the_table_is_gone_afterwards() -> None:
    made, console = after(started(swarm(2)), 3), paper(terminal=True)
    with showing(made, console, kinds=KINDS, baseline=None, live=True):
        pass
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "node-001" in written
    shown, _, end = written.rpartition("node-001")
    assert shown
    assert end.count(ERASE_LINE) >= 5  # title, header, two nodes, bar
    assert SHOW_CURSOR in end


def test_nothing_is_shown_when_nobody_wants_it() -> None:
    made = swarm(2)
    for terminal in (True, False):
        console = paper(terminal=terminal)
        with showing(made, console, kinds=KINDS, baseline=None, live=False):
            made.on_event({"event": "started"})
        assert text(console) == ""
