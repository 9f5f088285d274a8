"""The progress of a swarm: a table and bars on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pfl_node.swarm.baseline import Baseline
from pfl_node.swarm.format import percent, plural, short
from pfl_node.swarm.messages import node_name
from pfl_node.swarm.supervisor import NodeSlot, Swarm

COMPARING = "the same nodes alone, for comparison"
MARGIN = 8  # lines of the terminal that are not rows of the table
PARTNERS = 12  # shown of one node
EVERY = 10.0  # seconds between two lines of a run without a last round


class LiveView:
    def __init__(self, swarm: Swarm, *, kinds: Mapping[int, str], baseline: Baseline | None) -> None:
        self.swarm = swarm
        self.kinds = kinds
        self.baseline = baseline
        self.progress = Progress(
            SpinnerColumn("line"),
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
        )
        self.learning = self.progress.add_task("", total=None, count="")
        self.alone: TaskID | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.swarm.started:
            yield Text(title_of(self.swarm), style="bold")
            yield self._table(max(4, options.size.height - MARGIN))
        self._update()
        yield self.progress

    def _update(self) -> None:
        swarm, baseline = self.swarm, self.baseline
        done, total = swarm.rounds_done, swarm.rounds_total
        began = swarm.ready.is_set()
        self.progress.update(
            self.learning,
            description=phase_of(swarm),
            completed=done,
            total=total if began else None,
            count=_count(done, total) if began else "",
        )
        if baseline and baseline.begun:
            if self.alone is None:
                self.alone = self.progress.add_task("", total=baseline.rounds_total, count="")
            count = _count(baseline.rounds_done, baseline.rounds_total)
            skip = " (Ctrl-C skips this)" if swarm.done == swarm.nodes and not baseline.alone else ""
            self.progress.update(
                self.alone,
                description=COMPARING,
                completed=baseline.rounds_done,
                count=count + skip,
            )

    def _table(self, rows: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold dim")
        table.add_column("node", no_wrap=True)
        if self.kinds:
            table.add_column("sees digits", no_wrap=True)
        table.add_column("round", justify="right", no_wrap=True)
        table.add_column("validation", justify="right", no_wrap=True)
        slots, rounds = self.swarm.slots, self.swarm.settings.rounds
        groups = groups_of(slots, rows)
        found = [partners(group, slots) for _, group in groups]
        if any(found):
            table.add_column("learns with", no_wrap=True, overflow="ellipsis")
        for (label, group), others in zip(groups, found, strict=True):
            kind = [_kind(group, self.kinds)] if self.kinds else []
            span = _span(group) + (f"/{rounds}" if rounds else "")
            table.add_row(label, *kind, span, score(group), *([others] if any(found) else []))
        return table


def phase_of(swarm: Swarm) -> str:
    if swarm.stopping:
        return "stopping (press Ctrl-C again to kill it)"
    if swarm.imported < len(swarm.shares):
        return f"starting {processes(swarm)}: importing torch takes a few seconds"
    if not swarm.ready.is_set():
        return f"nodes are joining: {swarm.started} of {swarm.nodes}"
    return f"training with {short(swarm.settings.policy.name)}"


def title_of(swarm: Swarm) -> str:
    policy, task = short(swarm.settings.policy.name), short(swarm.settings.task.name)
    return f"{policy} on {task}: {plural(swarm.nodes, 'node')} in {processes(swarm)}"


def processes(swarm: Swarm) -> str:
    return "1 process" if len(swarm.shares) == 1 else f"{len(swarm.shares)} processes"


class StatusLines:
    """Prints a line at the start, when all nodes are ready, and after every tenth of the rounds."""

    def __init__(
        self,
        swarm: Swarm,
        baseline: Baseline | None,
        print_line: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.swarm = swarm
        self.baseline = baseline
        self.print_line = print_line
        self.clock = clock
        self.began = self.printed_at = clock()
        self.printed = 0  # rounds
        self._once_printed: set[str] = set()
        print_line(phase_of(swarm))

    def update(self) -> None:
        swarm, baseline, now = self.swarm, self.baseline, self.clock()
        after = f"after {now - self.began:.0f} s"
        if swarm.stopping:
            self._once("stopping", phase_of(swarm))
        elif swarm.ready.is_set():
            self._once("ready", f"{plural(swarm.nodes, 'node')} ready {after}")
        done, total = swarm.rounds_done, swarm.rounds_total
        due = now - self.printed_at >= EVERY if total is None else done - self.printed >= total / 10
        if done > self.printed and due:
            self.printed, self.printed_at = done, now
            self.print_line(f"{_count(done, total)} {after}, validation {score(swarm.slots)}")
        if baseline and not baseline.alone and swarm.done == swarm.nodes and not swarm.stopping:
            self._once("alone", f"{COMPARING}: {_count(baseline.rounds_done, baseline.rounds_total)}")

    def _once(self, key: str, line: str) -> None:
        if key not in self._once_printed:
            self._once_printed.add(key)
            self.print_line(line)


@contextmanager
def showing(
    swarm: Swarm, console: Console, *, kinds: Mapping[int, str], baseline: Baseline | None, live: bool
) -> Iterator[None]:
    if live and console.is_terminal and not console.is_dumb_terminal:
        view = LiveView(swarm, kinds=kinds, baseline=baseline)
        # Redirecting stderr puts the workers' logs above the table.
        with Live(
            view, console=console, refresh_per_second=5, transient=True, redirect_stderr=sys.stderr.isatty()
        ):
            yield
        return
    if live:

        def print_line(line: str) -> None:
            console.print(line, markup=False, soft_wrap=True)

        lines = StatusLines(swarm, baseline, print_line, time.monotonic)
        swarm.on_event = lambda _: lines.update()
        yield
        console.print()  # before the report
        return
    yield


def groups_of(slots: Sequence[NodeSlot], rows: int) -> list[tuple[str, Sequence[NodeSlot]]]:
    """One row per node, or per group of nodes where there are too many."""
    if len(slots) <= rows:
        return [(node_name(s.index), [s]) for s in slots]
    size = -(-len(slots) // rows)
    chunks = [slots[i : i + size] for i in range(0, len(slots), size)]
    return [(f"{node_name(c[0].index)} to {c[-1].index:03d}", c) for c in chunks]


def score(slots: Sequence[NodeSlot]) -> str:
    """The accuracy; else the first metric of the task, else the loss."""
    own = [key for s in slots[:1] for key in s.last_round if key.startswith("val_")]
    for key in dict.fromkeys(("val_accuracy", *(k for k in own if k != "val_loss"), "val_loss")):
        values = [s.last_round.get(key) for s in slots]
        if known := [value for value in values if value is not None and isfinite(value)]:
            name = key.removeprefix("val_")
            return percent(fmean(known)) if name == "accuracy" else f"{name} {fmean(known):.4g}"
    return "-"


def partners(group: Sequence[NodeSlot], slots: Sequence[NodeSlot]) -> str:
    """The neighbours that the node has chosen, its head, or the senders of the models it merged last."""
    if len(group) != 1:
        return ""
    slot = group[0]
    index = {s.node: s.index for s in slots}
    if found := slot.records.get("neighbours"):
        return f"found {_short(found.get('ids'), index)}"
    last = slot.last_round
    if "head" in last:
        return f"those with head {last['head']}"
    return f"tries {_short(last['from'], index)}" if last.get("from") else ""


def _short(ids: Any, index: Mapping[str, int]) -> str:
    """Their indices. A user's policy may record anything under these names."""
    known = sorted({index[i] for i in ids if isinstance(i, str) and i in index}) if isinstance(ids, list) else []
    return " ".join(f"{i:02d}" for i in known[:PARTNERS]) + (" and more" if len(known) > PARTNERS else "")


def _span(group: Sequence[NodeSlot]) -> str:
    rounds = [s.round for s in group]
    return f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)}-{max(rounds)}"


def _kind(group: Sequence[NodeSlot], kinds: Mapping[int, str]) -> str:
    known = {s.cluster for s in group if s.cluster is not None}
    return ", ".join(kinds[c] for c in sorted(known) if c in kinds)


def _count(done: int, total: int | None) -> str:
    return f"{100 * done // total} % of the rounds" if total else f"{done} rounds in all"
