"""`pfl-node sim`: many nodes in one process, in virtual time."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.lab import progress_bars
from pfl_node.cli.options import ABOUT_ONE_NODE, Format, GivenSettings, Nodes, takes_settings, unchecked
from pfl_node.cli.output import as_facts, as_json, as_table, progress_bar, say
from pfl_node.errors import ConfigError, PflError

if TYPE_CHECKING:
    from pfl_node.lab.policy_comparison import PolicyComparison
    from pfl_node.settings import Settings
    from pfl_node.sim.outcome import Summary
    from pfl_node.sim.simulation import Progress

ROUNDS = 20  # default number of rounds
NAMED = 8  # malicious nodes listed by name; more are counted
POLICY = "The algorithm: a name of `pfl-node policies`, or file.py:Class. Several, or `all`, are compared."

Policies = Annotated[str | None, typer.Option("--policy", metavar="NAME[,NAME...]", help=POLICY)]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Compare N seeds, starting at --seed.")]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Parallel runs of a comparison; default: one per core.")
]
Jobs = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Train and score in N processes; the journal stays the same."),
]
Fitted = Annotated[
    bool,
    typer.Option(
        "--fit/--no-fit", help="In a comparison: knobs scaled to the nodes and rounds, or those of the papers."
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write journals, summaries and the table to this directory.")
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault", metavar="FAULT", help="A fault, such as crash:n003@12.5 or loss:0.02; may be repeated."
    ),
]


@takes_settings(leave_out=ABOUT_ONE_NODE | {"--policy"}, read=lambda given: given)
def sim(
    given: GivenSettings,
    policy: Policies = None,
    nodes: Nodes = 20,
    seeds: Seeds = 1,
    workers: Workers = None,
    jobs: Jobs = 1,
    fit: Fitted = True,
    fault: Faults = None,
    out: Out = None,
    format: Format = "table",
) -> int:
    """Simulate a swarm in virtual time. The same seed gives the same journal. Several policies or seeds are
    compared in one table."""
    from pfl_node.learning.kernels import choose_kernels

    choose_kernels()
    from pfl_node.policies import policies_in
    from pfl_node.sim.faults import node_ids, parse_faults

    faults = parse_faults(fault or (), node_ids(nodes))
    sets, own = split_sets(given.sets or [])
    settings = unchecked(replace(given, overrides=given.overrides | {"policy.name": policy}, sets=sets))
    settings = settings.model_copy(update={"rounds": settings.rounds or ROUNDS})
    names = policies_in(settings.policy.name)
    if len(names) != 1 or seeds > 1:
        planned = plan_comparison(settings, names, own, nodes=nodes, seeds=seeds, fitted=fit)
        return run_comparison(planned, faults=fault or (), out=out, workers=workers, json=format == "json")

    from pfl_node.sim import simulate

    settings = with_own(settings, names[0], own)
    with progress_bar("simulating") as update:

        def progress(now: "Progress") -> None:
            update(now.rounds_done, now.rounds_total)

        summary = simulate(settings, nodes=nodes, faults=faults, out=out, progress=progress, jobs=jobs)
    _show(summary, settings.attack.kind, json=format == "json", faulty=bool(faults))
    return 0


def _show(summary: "Summary", attack: Sequence[str], *, json: bool, faulty: bool) -> None:
    from pfl_node.sim.outcome import divergence, misfits, refusals

    if json:
        as_json(summary.as_dict())
    else:
        as_facts(facts(summary, attack))
    refused = misfits(summary.refused) if faulty or attack else refusals(summary.refused)
    for text in filter(None, (refused, divergence(n.diverged for n in summary.nodes))):
        print(f"warning: {text}", file=sys.stderr)


def split_sets(sets: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Separate the shared settings from policy.NAME.KNOB=VALUE, by policy. A NAME may contain dots."""
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
    sent = sum(n.models_sent for n in summary.nodes)
    moved = sum(n.bytes_sent for n in summary.nodes)
    lines: dict[str, Any] = {
        "run": f"{summary.policy} on {summary.task}, {len(summary.nodes)} nodes, {summary.rounds} rounds, "
        f"seed {summary.seed}",
    }
    if attack:
        lines["malicious"] = _malicious(summary, attack)
    lines |= _figures(summary)
    if found := summary.neighbour_precision:
        lines["neighbours"] = f"precision {_percent(found.precision)}, recall {_percent(found.recall)}"
    if summary.heads is not None:
        lines |= {f"heads of cluster {c}": _counted(heads) for c, heads in summary.heads.items()}
        lines["settled"] = "yes" if summary.settled else "did not settle"
    lines["sent"] = f"{sent:,} models, {moved / 1e6:,.1f} MB; {summary.models_lost:,} lost"
    if summary.refused:
        lines["refused"] = _counted(dict(summary.refused))
    if kept_out := sum(n.kept_out for n in summary.nodes if n.honest):
        lines["kept out"] = f"{kept_out:,} models, by the guards of honest nodes{_caught(summary)}"
    lines["time"] = f"{summary.virtual_seconds:,.1f} s simulated in {summary.wall_seconds:,.1f} s"
    return lines


def _figures(summary: "Summary") -> dict[str, str]:
    """The headline with its clusters, and the other metrics; the accuracy only if the labels are classes."""
    name = summary.headline.name
    if name == "accuracy":
        first = {"accuracy": _percent(summary.accuracy)}
        first |= {f"  cluster {cluster}": _percent(value) for cluster, value in summary.by_cluster.items()}
    else:
        first = {name: _number(summary.figure(name))}
        first |= {f"  cluster {cluster}": _number(value) for cluster, value in summary.headline_by_cluster.items()}
        first |= {"accuracy": _percent(summary.accuracy)} if summary.accuracy is not None else {}
    others = {name: _number(value) for name, value in summary.metrics.items() if name not in first}
    return first | others


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _malicious(summary: "Summary", attack: Sequence[str]) -> str:
    bad = [n.id for n in summary.nodes if not n.honest]
    if not bad:
        return f"none: attack.share of {len(summary.nodes)} nodes is less than one node"
    names = ", ".join(bad) if len(bad) <= NAMED else f"{len(bad)} of {len(summary.nodes)}"
    return f"{names} ({', '.join(attack)}); accuracy and neighbours are those of the others"


def _caught(summary: "Summary") -> str:
    caught = summary.detection
    if not caught:
        return ""
    return f"; quarantine: precision {_percent(caught.precision)}, recall {_percent(caught.recall)}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _counted(counts: dict[Any, int]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items())


# -- comparisons -----------------------------------------------------------------------------------------------


def plan_comparison(
    settings: "Settings",
    names: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    *,
    nodes: int,
    seeds: int,
    fitted: bool,
) -> "PolicyComparison":
    """Checks all settings but those of the policies, which `enter` checks."""
    from pfl_node.daemon.preflight import check
    from pfl_node.lab.policy_comparison import PolicyComparison, enter
    from pfl_node.settings import PolicySettings

    if not names:
        raise ConfigError("--policy is empty: name a policy, several separated by commas, or all")
    privacy = settings.privacy.model_copy(update={"dp_correlated": False})  # not every policy supports it
    anyone = {"policy": PolicySettings(name="local"), "privacy": privacy}
    check(settings.model_copy(update=anyone))
    knobs, rounds = settings.policy.options, settings.rounds or ROUNDS
    entrants = enter(names, knobs, own, nodes=nodes, rounds=rounds, fitted=fitted)
    return PolicyComparison.plan(settings, entrants, nodes=nodes, seeds=seeds)


def run_comparison(
    planned: "PolicyComparison", *, faults: Sequence[str], out: Path | None, workers: int | None, json: bool
) -> int:
    """Returns 1 only if no policy ran."""
    from pfl_node.lab import comparison_table
    from pfl_node.lab.report import phrases
    from pfl_node.store.atomic import make_directory

    if out:
        make_directory(out)  # fail before the runs, not after them
    with progress_bars(planned.experiment) as on_cell:
        found = planned.run(faults=faults, out=out, workers=workers, on_cell=on_cell)
    if not found.ran and len(set(found.failures.values())) == 1:
        raise PflError(f"no policy ran: {next(iter(found.failures.values()))}")
    if out:
        comparison_table.write(found, out)
    if json:
        as_json(comparison_table.as_dict(found))
    else:
        show_comparison(found)
    for line in () if faults else phrases.warnings(found.results):
        print(f"warning: {line}", file=sys.stderr)
    return 0 if found.ran else 1


def show_comparison(found: "PolicyComparison") -> None:
    from pfl_node.lab import comparison_table as table

    say(table.title(found))
    as_table(table.columns(found), [table.cells(found, entrant) for entrant in found.ran])
    for line in (*table.failures(found), table.legend(found), *table.knobs(found)):
        say(line)
