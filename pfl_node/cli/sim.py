"""`pfl-node sim`: the same policies on a virtual clock, many nodes in one process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.options import ABOUT_ONE_NODE, Format, takes_settings
from pfl_node.cli.show import as_facts, as_json

if TYPE_CHECKING:
    from pfl_node.settings import Settings
    from pfl_node.sim.summary import Summary
    from pfl_node.sim.swarm import Progress

ROUNDS = 20  # where nobody says how many

Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write journal.jsonl and summary.json here.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="FAULT", help="Such as crash:n003@12.5 or loss:0.02; may be repeated."),
]


@takes_settings(leave_out=ABOUT_ONE_NODE)
def sim(
    settings: "Settings", nodes: Nodes = 20, fault: Faults = None, out: Out = None, format: Format = "table"
) -> int:
    """Simulate a swarm: one seed decides everything, and the same seed gives the same journal."""
    from pfl_node.sim.faults import node_ids, parse_faults

    faults = parse_faults(fault or (), node_ids(nodes))
    if settings.rounds is None:
        settings = settings.model_copy(update={"rounds": ROUNDS})

    from pfl_node.sim import simulate

    with progress_bar() as progress:
        summary = simulate(settings, nodes=nodes, faults=faults, out=out, progress=progress)
    if format == "json":
        as_json(summary.as_dict())
    else:
        as_facts(facts(summary))
    return 0


def facts(summary: "Summary") -> dict[str, Any]:
    """The summary for people."""
    sent = sum(n.models_sent for n in summary.nodes)
    moved = sum(n.bytes_sent for n in summary.nodes)
    told: dict[str, Any] = {
        "run": f"{summary.policy} on {summary.task}, {len(summary.nodes)} nodes, {summary.rounds} rounds, "
        f"seed {summary.seed}",
        "accuracy": _percent(summary.accuracy),
    }
    told |= {f"  cluster {cluster}": _percent(accuracy) for cluster, accuracy in summary.by_cluster.items()}
    if found := summary.found:
        told["neighbours"] = f"precision {_percent(found.precision)}, recall {_percent(found.recall)}"
    if summary.heads is not None:
        told |= {f"heads of cluster {c}": _counted(heads) for c, heads in summary.heads.items()}
        told["settled"] = summary.settled
    told["sent"] = f"{sent:,} models, {moved / 1e6:,.1f} MB; {summary.models_lost:,} lost"
    if summary.refused:
        told["refused"] = _counted(dict(summary.refused))
    told["time"] = f"{summary.virtual_seconds:,.1f} s simulated in {summary.wall_seconds:,.1f} s"
    return told


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _counted(counts: dict[Any, int]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items())


@contextmanager
def progress_bar() -> "Iterator[Callable[[Progress], None] | None]":
    """A bar on stderr where somebody can see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda p: bar.update(task, completed=p.rounds_done, total=p.rounds_total)
