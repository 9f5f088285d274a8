"""`pfl-node sim` with several policies or seeds: runs them and prints one table."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_node.cli.lab_view import progress_bars
from pfl_node.cli.output import as_json, as_table, say
from pfl_node.errors import ConfigError, PflError

if TYPE_CHECKING:
    from pfl_node.lab.policy_comparison import PolicyComparison
    from pfl_node.settings import Settings


@dataclass(frozen=True, slots=True)
class ComparisonSize:
    nodes: int
    seeds: int
    workers: int | None  # None: one per core
    fitted: bool


def run_comparison(
    settings: "Settings",
    names: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    size: ComparisonSize,
    *,
    faults: Sequence[str],
    out: Path | None,
    json: bool,
) -> int:
    """Returns 1 only if no policy ran."""
    from pfl_node.lab import comparison_table
    from pfl_node.lab.policy_comparison import PolicyComparison, enter
    from pfl_node.lab.report import phrases
    from pfl_node.store.atomic import make_directory

    _check(settings, names)
    knobs, rounds = settings.policy.options, settings.rounds or 1
    entrants = enter(names, knobs, own, nodes=size.nodes, rounds=rounds, fitted=size.fitted)
    if out:
        make_directory(out)  # fail before the runs, not after them
    planned = PolicyComparison.plan(settings, entrants, nodes=size.nodes, seeds=size.seeds)
    with progress_bars(planned.experiment) as on_cell:
        found = planned.run(faults=faults, out=out, workers=size.workers, on_cell=on_cell)
    if not found.ran and len(set(found.failures.values())) == 1:
        raise PflError(f"no policy ran: {next(iter(found.failures.values()))}")
    if out:
        comparison_table.write(found, out)
    if json:
        as_json(comparison_table.as_dict(found))
    else:
        show(found)
    for line in () if faults else phrases.warnings(found.results):
        print(f"warning: {line}", file=sys.stderr)
    return 0 if found.ran else 1


def _check(settings: "Settings", names: Sequence[str]) -> None:
    """All settings but the policies, which `enter` checks."""
    from pfl_node.daemon.preflight import check
    from pfl_node.settings import PolicySettings

    if not names:
        raise ConfigError("--policy is empty: name a policy, several separated by commas, or all")
    check(settings.model_copy(update={"policy": PolicySettings(name="local")}))


def show(found: "PolicyComparison") -> None:
    from pfl_node.lab import comparison_table as table

    say(table.title(found))
    as_table(table.columns(found), [table.cells(found, entrant) for entrant in found.ran])
    for line in (*table.failures(found), table.legend(found), *table.knobs(found)):
        say(line)
