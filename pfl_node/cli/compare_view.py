"""How `pfl-node sim` compares: runs all, shows who is running on a terminal, prints one comparison_table."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_node.cli.output import as_json, as_table
from pfl_node.errors import ConfigError, PflError, StoreError

if TYPE_CHECKING:
    from pfl_node.settings import Settings
    from pfl_node.sim.policy_comparison import Heard, PolicyComparison


@dataclass(frozen=True, slots=True)
class ComparisonSize:
    """How much is compared, and how."""

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
    """1 only if nobody could run."""
    from pfl_node.sim import comparison_table
    from pfl_node.sim.policy_comparison import compare, enter

    _check(settings, names)
    entrants = enter(
        names, settings.policy.options, own, nodes=size.nodes, rounds=settings.rounds or 1, fitted=size.fitted
    )
    _make(out)
    with bars(len(names) * size.seeds) as watch:
        found = compare(
            settings,
            entrants,
            nodes=size.nodes,
            seeds=size.seeds,
            faults=faults,
            out=out,
            workers=size.workers,
            watch=watch,
        )
    if len(same := {row.failure for row in found.rows}) == 1 and not found.ran:
        raise PflError(f"no policy ran: {same.pop()}")
    if out:
        comparison_table.write(found, out)
    if json:
        as_json(comparison_table.as_dict(found))
    else:
        show(found)
    return 0 if found.ran else 1


def _check(settings: "Settings", names: Sequence[str]) -> None:
    """All but the policies, which `enter` looks at."""
    from pfl_node.daemon.preflight import check
    from pfl_node.settings import PolicySettings

    if not names:
        raise ConfigError("--policy names none: give one, several with commas between them, or all")
    check(settings.model_copy(update={"policy": PolicySettings(name="local")}))


def _make(out: Path | None) -> None:
    """Before hours of work, not after them."""
    if out:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {out}: {error.strerror or error}") from error


def show(found: "PolicyComparison") -> None:
    """The comparison_table, who did not run, and what was run."""
    from pfl_node.sim import comparison_table

    print(comparison_table.title(found))
    as_table(comparison_table.columns(found), [comparison_table.cells(found, row) for row in found.ran])
    for line in (
        *comparison_table.failures(found),
        comparison_table.legend(found),
        *comparison_table.knobs(found),
    ):
        print(line)


@contextmanager
def bars(runs: int) -> "Iterator[Callable[[Heard], None] | None]":
    """One for all runs and one for each that is under way, on stderr where somebody can see them."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    told = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    under_way: dict[tuple[str, int], TaskID] = {}
    with Progress(*told, console=Console(stderr=True), transient=True) as shown:
        total = shown.add_task(f"{runs} runs", total=runs)

        def watch(heard: "Heard") -> None:
            run, said = (heard.title, heard.seed), heard.said
            if said["event"] == "progress":
                if run not in under_way:
                    under_way[run] = shown.add_task(f"{heard.title}, seed {heard.seed}")
                shown.update(under_way[run], completed=said["done"], total=said["total"])
                return
            shown.advance(total)
            if run in under_way:
                shown.remove_task(under_way.pop(run))

        yield watch
