"""`pfl-node chaos`: tests policies under random fault schedules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.options import Format, Sets
from pfl_node.cli.output import as_facts, as_json, progress_bar
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.testing.schedules.campaign import SeedRange, Totals
    from pfl_node.testing.schedules.generator import FaultSchedule

SCHEDULES = 200  # default number of schedules
SHRUNK = 3  # failing schedules that are reduced to fewer faults

Policies = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME[,NAME...]", help="Names or file.py:Class; default: all policies."),
]
Seed = Annotated[
    int | None, typer.Option(min=0, metavar="S", help="The seed of the schedule, or of the first one.")
]
Schedules = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Run N schedules, starting at --seed; default: one with --seed, else 200."
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Worker processes; default: one per core.")]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="Replace the seed's faults: such as crash:n003@12.5, or none; may be repeated.",
    ),
]


def chaos(
    policy: Policies = None,
    seed: Seed = None,
    schedules: Schedules = None,
    workers: Workers = None,
    sets: Sets = None,
    fault: Faults = None,
    format: Format = "table",
) -> int:
    """Test policies in small simulated swarms with random faults (crashes, restarts, partitions, loss, delay, slow
    nodes, clock skew) and check that the rules hold. A single schedule is described in full; for a schedule that
    breaks a rule, the command that repeats it is printed."""
    from pfl_node.testing.schedules.campaign import SeedRange

    names = _names(policy)
    given = tuple(sets or ())
    if seed is not None and schedules is None:
        return _one(seed, names, given, fault, format)
    if fault:
        raise ConfigError("--fault applies to a single schedule: give its --seed, and no --schedules")
    return _many(SeedRange(seed or 0, schedules or SCHEDULES, names, given), workers, format)


def _names(policy: str | None) -> tuple[str, ...]:
    from pfl_node.policies import load_policy, policies_in

    names = tuple(policies_in(policy or "all"))
    if not names:
        raise ConfigError("--policy is empty: name a policy, several separated by commas, or all")
    for name in names:
        load_policy(name)
    return names


def _one(
    seed: int, names: tuple[str, ...], sets: tuple[str, ...], faults: Sequence[str] | None, format: str
) -> int:
    """Returns 1 if a rule is broken."""
    from pfl_node.testing.schedules import command, draw, narrative, run
    from pfl_node.testing.schedules.campaign import knobs_of

    schedule = _with_faults(draw(seed, names, knobs_of(sets)), faults)
    trial = run(schedule, sets)
    if format == "json":
        from pfl_node.sim.faults import format_fault

        found: dict[str, Any] = {"seed": seed, "policy": schedule.policy, "nodes": schedule.nodes}
        found |= {"rounds": schedule.rounds, "knobs": dict(schedule.knobs), "settings": dict(schedule.settings)}
        found |= {"faults": [format_fault(f) for f in schedule.faults], "broken": [str(f) for f in trial.broken]}
        found |= {"checked": dict(trial.checked), "counts": dict(trial.counts), "digest": trial.digest}
        as_json(found)
    else:
        for line in narrative.lines(trial):
            print(line)
        if trial.broken:
            print(f"repeat    {command(schedule, sets, faults=bool(faults))}")
    return 1 if trial.broken else 0


def _with_faults(schedule: "FaultSchedule", faults: Sequence[str] | None) -> "FaultSchedule":
    from pfl_node.sim.faults import node_ids, parse_faults

    if not faults:
        return schedule
    ids = node_ids(schedule.nodes)
    return replace(schedule, faults=parse_faults([text for text in faults if text != "none"], ids))


def _many(batch: "SeedRange", workers: int | None, format: str) -> int:
    from pfl_node.sim.worker_process import cores
    from pfl_node.testing.schedules.campaign import run_campaign

    with progress_bar("schedules") as update:
        totals = run_campaign(batch, workers or cores(), lambda done: update(done, batch.number))
    for row in totals.broken:
        row |= _smallest(row, batch.sets, shrunk=row in totals.broken[:SHRUNK])
    if format == "json":
        as_json({**vars(totals), "digests": None, "digest": totals.digest})
    else:
        as_facts(_facts(totals, batch.first))
        for row in totals.broken:
            print(f"\nbroken    seed {row['seed']}, {row['policy']}")
            print(*(f"          {finding}" for finding in row["findings"]), sep="\n")
            print(f"repeat    {row['repeat']}")
            if row.get("smallest"):
                print(f"smallest  {row['smallest']}")
    return 1 if totals.broken else 0


def _smallest(row: dict[str, Any], sets: Sequence[str], *, shrunk: bool) -> dict[str, str]:
    """The commands that repeat it: with all its faults, and with the fewest that break the same rule."""
    from pfl_node.testing.schedules import command, draw, run
    from pfl_node.testing.schedules.campaign import knobs_of, shrink

    schedule = draw(row["seed"], (row["policy"],), knobs_of(sets))
    lines = {"repeat": command(schedule, sets)}
    if shrunk:
        trial = run(schedule, sets)
        trial = shrink(trial, sets) if trial.broken else trial
        if trial.schedule.faults != schedule.faults:
            lines["smallest"] = command(trial.schedule, sets, faults=True)
    return lines


def _facts(totals: "Totals", first: int) -> dict[str, Any]:
    from pfl_node.testing.schedules.narrative import messages

    faults = {
        what.removeprefix("fault "): n for what, n in sorted(totals.counts.items()) if what.startswith("fault ")
    }
    rounds = f"{totals.counts['rounds']:,} rounds in {totals.seconds:,.0f} virtual seconds"
    verdict = (
        f"{len(totals.broken)} schedules broke a rule" if totals.broken else f"all {len(totals.checked)} hold"
    )
    return {
        "schedules": f"{totals.schedules:,} (seeds {first} to {first + totals.schedules - 1}) "
        f"of {len(totals.policies)} policies",
        "faults": ", ".join(f"{n:,} {what}" for what, n in faults.items()) or "none",
        "ran": rounds,
        "messages": messages(totals.counts),
        "rules": f"{verdict}, checked {sum(totals.checked.values()):,} times",
        "digest": totals.digest,
    }
