"""The swarm while it runs: a table of its nodes and a progress bar. Only looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pfl_node.swarm.parent import Seat, Swarm
from pfl_node.swarm.spec import node_name

ROWS = 24  # more nodes than this are shown in groups


class View:
    """A picture of the swarm, drawn anew for each refresh."""

    def __init__(self, swarm: Swarm, title: str) -> None:
        self.swarm = swarm
        self.title = title
        total = (swarm.settings.rounds or 0) * swarm.nodes
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self.task = self.progress.add_task("starting", total=total or None)

    def __rich__(self) -> Group:
        seats = self.swarm.seats
        started = sum(1 for s in seats if s.node)
        done = self.swarm.done
        what = "node-rounds" if started == len(seats) else f"starting: {started} of {len(seats)} nodes are ready"
        self.progress.update(self.task, completed=_finished_rounds(self.swarm), description=what)
        return Group(self._table(seats), self.progress, f"{done} of {len(seats)} nodes are done")

    def _table(self, seats: list[Seat]) -> Table:
        table = Table(title=self.title, title_justify="left")
        for name in ("nodes", "round", "validation", "learns with"):
            table.add_column(name, justify="left" if name in ("nodes", "learns with") else "right")
        for label, group in _groups(seats):
            rounds = [s.round for s in group]
            span = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)}-{max(rounds)}"
            table.add_row(label, span, _percent(_known(group, "val_accuracy")), _partners(group, self.swarm.seats))
        return table


@contextmanager
def watching(swarm: Swarm, console: Console, title: str, *, live: bool) -> Iterator[None]:
    """Show the swarm while the block runs: a live table on a terminal, a line now and then elsewhere."""
    if live and console.is_terminal:
        with Live(View(swarm, title), console=console, refresh_per_second=4):
            yield
        return
    total = (swarm.settings.rounds or 0) * swarm.nodes
    step, shown = max(1, total // 10), 0

    def say(_: dict[str, Any]) -> None:
        nonlocal shown
        now = _finished_rounds(swarm)
        if live and now >= shown + step:
            shown = now
            accuracy = _percent(_known(swarm.seats, "val_accuracy"))
            console.print(f"{now} of {total or '?'} node-rounds, validation accuracy {accuracy}")

    swarm.on_event = say
    yield


def _finished_rounds(swarm: Swarm) -> int:
    """A final exchange after the last round is not one of them."""
    most = swarm.settings.rounds
    return sum(s.round if most is None else min(s.round, most) for s in swarm.seats)


def _groups(seats: list[Seat]) -> Iterable[tuple[str, list[Seat]]]:
    if len(seats) <= ROWS:
        return [(node_name(s.index), [s]) for s in seats]
    size = -(-len(seats) // ROWS)
    chunks = [seats[i : i + size] for i in range(0, len(seats), size)]
    return [(f"{node_name(c[0].index)} … {c[-1].index:03d}", c) for c in chunks]


def _known(seats: list[Seat], key: str) -> list[float]:
    return [s.said[key] for s in seats if key in s.said]


def _percent(values: list[float]) -> str:
    return f"{100 * fmean(values):.1f} %" if values else ""


def _partners(group: list[Seat], seats: list[Seat]) -> str:
    """What the node itself has found: its neighbours, its head, or whom it merged with last."""
    if len(group) != 1:
        return ""
    seat = group[0]
    index = {s.node: s.index for s in seats}
    chosen = next((r["ids"] for r in reversed(seat.records) if r["event"] == "neighbours"), None)
    if chosen is not None:
        return "found " + _short(index.get(p) for p in chosen)
    if "head" in seat.said:
        return f"head {seat.said['head']}"
    return "tries " + _short(index.get(p) for p in seat.said["from"]) if seat.said.get("from") else ""


def _short(indices: Iterable[int | None]) -> str:
    known = sorted(i for i in indices if i is not None)
    text = " ".join(f"{i:02d}" for i in known[:12])
    return text + (" …" if len(known) > 12 else "")
