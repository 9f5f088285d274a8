"""`pfl-node sim`: the same policies on a virtual clock, many nodes in one process."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.compare_view import ComparisonSize, run_comparison
from pfl_node.cli.options import ABOUT_ONE_NODE, FlagValue, Format, takes_settings, unchecked
from pfl_node.cli.output import as_facts, as_json

if TYPE_CHECKING:
    from pfl_node.settings import Settings
    from pfl_node.sim.simulation import Progress
    from pfl_node.sim.summary import Summary

ROUNDS = 20  # where nobody says how many
NAMED = 8  # malicious nodes that are told by name; more are counted
SAYS_WHO = "The algorithm: a name of `pfl-node policies`, or file.py:Class. Several, or `all`: one table."

Policies = Annotated[str | None, typer.Option("--policy", metavar="NAME[,NAME...]", help=SAYS_WHO)]
Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes.")]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="So many seeds, from --seed on: one table.")]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Runs of a table at the same time; otherwise one per core.")
]
Fitted = Annotated[
    bool,
    typer.Option(
        "--fit/--no-fit", help="In a table: knobs that fit the nodes and rounds, or those of the papers."
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write journals, summaries and the table here.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="FAULT", help="Such as crash:n003@12.5 or loss:0.02; may be repeated."),
]


@takes_settings(leave_out=ABOUT_ONE_NODE | {"--policy"}, read=lambda given: given)
def sim(
    given: FlagValue,
    policy: Policies = None,
    nodes: Nodes = 20,
    seeds: Seeds = 1,
    workers: Workers = None,
    fit: Fitted = True,
    fault: Faults = None,
    out: Out = None,
    format: Format = "table",
) -> int:
    """Simulate a swarm: one seed decides everything, and the same seed gives the same journal. Several policies or
    seeds are compared in one table."""
    from pfl_node.policies import policies_in
    from pfl_node.sim.faults import node_ids, parse_faults

    faults = parse_faults(fault or (), node_ids(nodes))
    sets, own = apart(given.sets or [])
    settings = unchecked(replace(given, overrides=given.overrides | {"policy.name": policy}, sets=sets))
    settings = settings.model_copy(update={"rounds": settings.rounds or ROUNDS})
    names = policies_in(settings.policy.name)
    if len(names) != 1 or seeds > 1:
        size = ComparisonSize(nodes, seeds, workers, fit)
        return run_comparison(settings, names, own, size, faults=fault or (), out=out, json=format == "json")

    from pfl_node.sim import simulate

    settings = with_own(settings, names[0], own)
    with progress_bar() as progress:
        summary = simulate(settings, nodes=nodes, faults=faults, out=out, progress=progress)
    if format == "json":
        as_json(summary.as_dict())
    else:
        as_facts(facts(summary, settings.attack.kind))
    return 0


def apart(sets: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """What holds for all, and by policy what was set as policy.NAME.KEY=VALUE. A NAME may have dots of its own."""
    from pfl_node.settings.load import load_settings

    shared: list[str] = []
    own: dict[str, dict[str, Any]] = {}
    for text in sets:
        key, _, value = text.partition("=")
        section, _, rest = key.strip().partition(".")
        name, _, knob = rest.rpartition(".")
        if section == "policy" and name:
            own.setdefault(name, {}).update(load_settings(sets=[f"policy.{knob}={value}"]).policy.options)
        else:
            shared.append(text)
    return shared, own


def with_own(settings: "Settings", name: str, own: dict[str, dict[str, Any]]) -> "Settings":
    """For one policy: its knobs and nobody else's, checked."""
    from pfl_node.daemon.preflight import check
    from pfl_node.lab.policy_comparison import check_own
    from pfl_node.settings import PolicySettings

    check_own(own, [name])
    knobs = settings.policy.options | own.get(name, {})
    policy = PolicySettings.model_validate({"name": name, **knobs})
    settings = settings.model_copy(update={"policy": policy})
    check(settings)
    return settings


def facts(summary: "Summary", attack: Sequence[str] = ()) -> dict[str, Any]:
    """The summary for people."""
    sent = sum(n.models_sent for n in summary.nodes)
    moved = sum(n.bytes_sent for n in summary.nodes)
    told: dict[str, Any] = {
        "run": f"{summary.policy} on {summary.task}, {len(summary.nodes)} nodes, {summary.rounds} rounds, "
        f"seed {summary.seed}",
    }
    if attack:
        told["malicious"] = _malicious(summary, attack)
    told["accuracy"] = _percent(summary.accuracy)
    told |= {f"  cluster {cluster}": _percent(accuracy) for cluster, accuracy in summary.by_cluster.items()}
    if found := summary.found:
        told["neighbours"] = f"precision {_percent(found.precision)}, recall {_percent(found.recall)}"
    if summary.heads is not None:
        told |= {f"heads of cluster {c}": _counted(heads) for c, heads in summary.heads.items()}
        told["settled"] = summary.settled
    told["sent"] = f"{sent:,} models, {moved / 1e6:,.1f} MB; {summary.models_lost:,} lost"
    if summary.refused:
        told["refused"] = _counted(dict(summary.refused))
    if kept_out := sum(n.kept_out for n in summary.nodes if n.honest):
        told["kept out"] = f"{kept_out:,} models, by the guard of honest nodes{_caught(summary)}"
    told["time"] = f"{summary.virtual_seconds:,.1f} s simulated in {summary.wall_seconds:,.1f} s"
    return told


def _malicious(summary: "Summary", attack: Sequence[str]) -> str:
    bad = [n.id for n in summary.nodes if not n.honest]
    if not bad:
        return f"nobody: attack.share is no node of {len(summary.nodes)}"
    names = ", ".join(bad) if len(bad) <= NAMED else f"{len(bad)} of {len(summary.nodes)}"
    return f"{names} ({', '.join(attack)}); accuracy and what was found are of the others"


def _caught(summary: "Summary") -> str:
    caught = summary.caught
    if not caught:
        return ""
    return f"; quarantine: precision {_percent(caught.precision)}, recall {_percent(caught.recall)}"


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
