"""What came out of a swarm, as a short text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pfl_node.sim import outcome
from pfl_node.sim.outcome import NodeRecord
from pfl_node.store.atomic import write_atomic
from pfl_node.swarm.baseline import LocalRun
from pfl_node.swarm.format import percent, plural, short, size
from pfl_node.swarm.swarm_outcome import SwarmOutcome

INTERRUPTED = 130  # what a shell calls a process that Ctrl-C has ended
PICTURE = 24  # nodes; a bigger picture does not fit a terminal


@dataclass(frozen=True)
class SwarmReport:
    """A run and what it is to be compared and explained with."""

    outcome: SwarmOutcome
    alone: LocalRun | None = None  # the same nodes without each other
    kinds: Mapping[int, str] = field(default_factory=dict)  # what the clusters are called
    stopped: bool = False  # by somebody, before the end
    killed: bool = False  # at once: the nodes could not even say how far they were
    notes: Sequence[str] = ()

    @property
    def worth(self) -> bool:
        """Is there anything to tell?"""
        return not self.killed and any(n.rounds for n in self.outcome.nodes)

    @property
    def code(self) -> int:
        """Of the process; a run that was ended in order is fine."""
        return 0 if self.worth else INTERRUPTED

    def write(self, out: Path) -> None:
        if self.worth:
            row = self.outcome.as_dict() | ({"alone": asdict(self.alone)} if self.alone else {})
            write_atomic(out / "summary.json", json.dumps(row, indent=1).encode() + b"\n")

    def show(self, console: Console, *, details: bool = False) -> None:
        if not self.worth:
            console.print("ended at once" if self.killed else "stopped before a node had learnt something")
            return
        console.print(Text(self.headline(), style="bold"))
        if verdict := self.verdict():
            console.print(verdict, markup=False)
        for part in (self.scores(), self.picture()):
            if part:
                console.print()
                console.print(part)
        console.print()
        for line in (*self.who_found_whom(), *self.cost(details), *self.notes):
            console.print(line, markup=False)

    # -- how well ----------------------------------------------------------------------------------------------

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
        if together is None or alone is None:
            return ""
        before, after = percent(alone), percent(together)
        change = f"{'rose' if together > alone else 'fell'} from {before} to {after}"
        told = change if before != after else f"stayed at {after}"
        return f"Learning with others, the mean accuracy on test data {told}."

    def scores(self) -> Table:
        """A line for each kind of data, and one for all; only that one where the kinds are not known."""
        o = self.outcome
        if o.accuracy is None:
            return self._losses()
        table = self._score_table("test accuracy")
        by_cluster = o.by_cluster if len(o.by_cluster) > 1 else {}
        before = self.alone.accuracy_by_cluster if self.alone else {}
        for cluster, accuracy in by_cluster.items():
            members = sum(1 for n in o.nodes if n.cluster == cluster)
            table.add_row(self.kind(cluster), str(members), *self._pair(before.get(cluster), accuracy))
        overall = self.alone.accuracy if self.alone else None
        table.add_row("all", str(len(o.nodes)), *self._pair(overall, o.accuracy))
        return table

    def _losses(self) -> Table:
        table = self._score_table("test loss")
        before = [] if self.alone is None else [_number(self.alone.loss)]
        table.add_row(
            "all", str(len(self.outcome.nodes)), *before, _number(self.outcome.loss), *([""] * len(before))
        )
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
        told = Text("" if before is None else f"{gain:+.1f}", style="green" if gain > 0 else "red")
        return [percent(before), percent(after), told]

    def kind(self, cluster: int | None) -> str:
        if cluster is None:
            return ""
        return self.kinds.get(cluster, f"cluster {cluster}")

    # -- who found whom ----------------------------------------------------------------------------------------

    def picture(self) -> Group | None:
        """Who chose whom, a row a node."""
        nodes = self.outcome.nodes
        if len(nodes) > PICTURE or not any(n.neighbours for n in nodes):
            return None
        known = any(n.cluster is not None for n in nodes)
        legend = "+ the same kind of data, x another kind" if known else "+ chosen"
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for n in nodes:
            table.add_column(n.id[-2:], justify="right", header_style="dim")
        for n in nodes:
            table.add_row(f"{n.id} {self.kind(n.cluster)}", *(_mark(n, other) for other in nodes))
        return Group(Text(f"who learns with whom: {legend}"), table)

    def who_found_whom(self) -> Iterator[str]:
        if found := self.outcome.found:
            yield (
                f"{percent(found.precision)} of the chosen neighbours have the same kind of data (precision); "
                f"{percent(found.recall)} of those with the same kind were chosen (recall)."
            )
        if heads := self.outcome.heads:
            yield "who shares a head with whom:"
            for cluster, counts in heads.items():
                told = ", ".join(f"{n} on head {head}" for head, n in counts.items())
                yield f"  {self.kind(cluster)}: {told}"
            if len(heads) > 1:
                yield (
                    "Each kind of data has found a head of its own."
                    if outcome.settled(heads)
                    else "The kinds of data have not settled on a head each."
                )

    # -- what it cost ------------------------------------------------------------------------------------------

    def cost(self, details: bool) -> Iterator[str]:
        o = self.outcome
        if o.models_sent:
            were = "was" if o.models_sent == 1 else "were"
            moved = f"{plural(o.models_sent, 'model')} {were} sent over gRPC, {size(o.bytes_sent)}"
            yield f"{moved}. No sample left its node."
        else:
            yield "No model was sent."
        if bad := [n.id for n in o.nodes if not n.honest]:
            yield f"Malicious: {', '.join(bad)}; what was learned is told of the others."
        if o.refused and details:
            yield "Refused: " + ", ".join(f"{why} {n}" for why, n in o.refused.items())
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
