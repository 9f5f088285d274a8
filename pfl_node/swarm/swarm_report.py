"""The report of a swarm, printed for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pfl_node.sim.outcome import NodeRecord, misfits
from pfl_node.store.atomic import write_atomic
from pfl_node.swarm.baseline import LocalRun
from pfl_node.swarm.format import percent, plural, short, size
from pfl_node.swarm.swarm_outcome import SwarmOutcome
from pfl_node.types import ACCURACY

INTERRUPTED = 130  # the exit code of a process ended by Ctrl-C
MATRIX = 24  # nodes; a larger matrix does not fit a terminal


@dataclass(frozen=True)
class SwarmReport:
    outcome: SwarmOutcome
    alone: LocalRun | None = None  # the same nodes without each other
    kinds: Mapping[int, str] = field(default_factory=dict)  # names of the clusters
    stopped: bool = False  # by a signal, before the last round
    killed: bool = False  # by a second signal: the nodes could not report
    notes: Sequence[str] = ()

    @property
    def has_results(self) -> bool:
        return not self.killed and any(n.rounds for n in self.outcome.nodes)

    @property
    def code(self) -> int:
        """The exit code. Stopping a run is not a failure."""
        return 0 if self.has_results else INTERRUPTED

    def write(self, out: Path) -> None:
        if self.has_results:
            row = self.outcome.as_dict() | ({"alone": asdict(self.alone)} if self.alone else {})
            write_atomic(out / "summary.json", json.dumps(row, indent=1).encode() + b"\n")

    def show(self, console: Console, *, details: bool = False) -> None:
        if not self.has_results:
            console.print("killed" if self.killed else "stopped before any node finished a round")
            return
        console.print(Text(self.headline(), style="bold"))
        if verdict := self.verdict():
            console.print(verdict, markup=False)
        for part in (self.scores(), self.matrix()):
            if part:
                console.print()
                console.print(part)
        console.print()
        for line in (*self.neighbour_lines(), *self.cost(details), *self.notes):
            console.print(line, markup=False)

    # -- accuracy ----------------------------------------------------------------------------------------------

    def headline(self) -> str:
        o = self.outcome
        least, most = o.rounds_done
        rounds = plural(most, "round") if least == most else f"{least} to {most} rounds"
        if self.stopped:
            rounds = f"stopped after {rounds}" + (f" of {o.rounds}" if o.rounds else "")
        what = f"{short(o.policy)} on {short(o.task)}"
        return f"{what}: {plural(len(o.nodes), 'node')}, {rounds}, {o.wall_seconds:.0f} s"

    def verdict(self) -> str:
        together, alone = self.outcome.accuracy, self.alone.accuracy if self.alone else None
        if together is None or alone is None or self.outcome.headline != ACCURACY:
            return ""
        before, after = percent(alone), percent(together)
        change = f"{'rose' if together > alone else 'fell'} from {before} to {after}"
        outcome = change if before != after else f"stayed at {after}"
        return f"By learning with others, the mean test accuracy {outcome}."

    def scores(self) -> Table:
        """A row for each cluster, if there are several, and one for all nodes."""
        o = self.outcome
        if o.accuracy is None or o.headline != ACCURACY:
            return self._headlines()
        table = self._score_table("test accuracy")
        by_cluster = o.by_cluster if len(o.by_cluster) > 1 else {}
        before = self.alone.accuracy_by_cluster if self.alone else {}
        for cluster, accuracy in by_cluster.items():
            members = sum(1 for n in o.nodes if n.cluster == cluster)
            table.add_row(self.kind(cluster), str(members), *self._pair(before.get(cluster), accuracy))
        overall = self.alone.accuracy if self.alone else None
        table.add_row("all", str(len(o.nodes)), *self._pair(overall, o.accuracy))
        return table

    def _headlines(self) -> Table:
        """The task's headline, by cluster if there are several."""
        o = self.outcome
        name = "loss" if o.headline == ACCURACY else o.headline.name
        table = self._score_table(f"test {name}")
        before = [] if self.alone is None else [_number(self.alone.figure(name))]
        by_cluster = o.headline_by_cluster if len(o.headline_by_cluster) > 1 else {}
        for cluster, value in by_cluster.items():
            members = sum(1 for n in o.nodes if n.cluster == cluster)
            table.add_row(
                self.kind(cluster), str(members), *([""] * len(before)), _number(value), *([""] * len(before))
            )
        table.add_row("all", str(len(o.nodes)), *before, _number(o.figure(name)), *([""] * len(before)))
        return table

    def _score_table(self, what: str) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(what)
        table.add_column("nodes", justify="right")
        if self.alone is not None:
            table.add_column("alone", justify="right")
        name = "alone" if self.outcome.policy == "local" else f"with {short(self.outcome.policy)}"
        table.add_column(name, justify="right", style="bold")
        if self.alone is not None:
            table.add_column("", justify="right")
        return table

    def _pair(self, before: float | None, after: float) -> list[str | Text]:
        if self.alone is None:
            return [percent(after)]
        gain = 0.0 if before is None else 100 * (after - before)
        change = Text("" if before is None else f"{gain:+.1f}", style="green" if gain > 0 else "red")
        return [percent(before), percent(after), change]

    def kind(self, cluster: int | None) -> str:
        if cluster is None:
            return ""
        return self.kinds.get(cluster, f"cluster {cluster}")

    # -- neighbours ----------------------------------------------------------------------------------------

    def matrix(self) -> Group | None:
        nodes = self.outcome.nodes
        if len(nodes) > MATRIX or not any(n.neighbours for n in nodes):
            return None
        known = any(n.cluster is not None for n in nodes)
        legend = "+ the same kind of data, x another kind" if known else "+ chosen"
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for n in nodes:
            table.add_column(n.id[-2:], justify="right", header_style="dim")
        for n in nodes:
            table.add_row(f"{n.id} {self.kind(n.cluster)}", *(_mark(n, other) for other in nodes))
        return Group(Text(f"neighbours of each node: {legend}"), table)

    def neighbour_lines(self) -> Iterator[str]:
        if found := self.outcome.neighbour_precision:
            yield (
                f"{percent(found.precision)} of the chosen neighbours have the same kind of data (precision); "
                f"{percent(found.recall)} of those with the same kind were chosen (recall)."
            )
        if heads := self.outcome.heads:
            yield "heads chosen by each kind of data:"
            for cluster, counts in heads.items():
                counted = ", ".join(f"{n} on head {head}" for head, n in counts.items())
                yield f"  {self.kind(cluster)}: {counted}"
            if len(heads) > 1:
                yield (
                    "Each kind of data has settled on a head of its own."
                    if self.outcome.settled
                    else "The kinds of data have not settled on separate heads."
                )

    # -- cost ------------------------------------------------------------------------------------------

    def cost(self, details: bool) -> Iterator[str]:
        o = self.outcome
        if o.models_sent:
            were = "was" if o.models_sent == 1 else "were"
            moved = f"{plural(o.models_sent, 'model')} {were} sent over gRPC, {size(o.bytes_sent)}"
            yield f"{moved}. No sample left its node."
        else:
            yield "No model was sent."
        if bad := [n.id for n in o.nodes if not n.honest]:
            yield f"Malicious: {', '.join(bad)}; accuracies are those of the others."
        if o.refused and details:
            yield "Refused: " + ", ".join(f"{why} {n}" for why, n in o.refused.items())
        if text := misfits(o.refused):
            yield f"{text[0].upper()}{text[1:]}"
        if o.unfinished:
            yield f"{o.unfinished} of {len(o.nodes)} nodes did not finish."


def show_next(steps: Mapping[str, str], console: Console) -> None:
    grid = Table.grid(padding=(0, 3))
    grid.add_column(no_wrap=True)
    for command, what in steps.items():
        grid.add_row(Text(f"  {command}", style="bold"), what)
    console.print("\nnext:", markup=False)
    console.print(grid)


def _mark(n: NodeRecord, other: NodeRecord) -> Text:
    if other.id == n.id:
        return Text("o", style="dim")
    if other.id not in (n.neighbours or ()):
        return Text(".", style="dim")
    if n.cluster is None or n.cluster == other.cluster:
        return Text("+", style="green")
    return Text("x", style="red")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
