"""What `pfl-node lab` shows while runs are under way and when they are done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfl_node.cli.show import as_json, as_table

if TYPE_CHECKING:
    from pfl_node.lab.experiment import Cell, Experiment
    from pfl_node.lab.folder import Folder
    from pfl_node.lab.results import Estimate, Results
    from pfl_node.lab.runner import Watch


@contextmanager
def watching(experiment: "Experiment") -> "Iterator[Watch]":
    """Bars on a terminal; elsewhere a line for each run that ends."""
    if not sys.stderr.isatty():
        yield _lines(len(experiment.cells))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    under_way: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        whole = sum(work_of(cell) for cell in experiment.cells)
        total = shown.add_task(f"{experiment.name}, {len(experiment.cells)} runs", total=whole)
        done: dict[str, int] = {}

        def watch(cell: "Cell", said: dict[str, Any]) -> None:
            if said["event"] == "progress":
                if cell.folder not in under_way:
                    under_way[cell.folder] = shown.add_task(title_of(cell), total=said["total"])
                shown.update(under_way[cell.folder], completed=said["done"])
                done[cell.folder] = min(said["done"], work_of(cell))
            else:
                done[cell.folder] = work_of(cell)
                if cell.folder in under_way:
                    shown.remove_task(under_way.pop(cell.folder))
            shown.update(total, completed=sum(done.values()))

        yield watch


def work_of(cell: "Cell") -> int:
    return cell.nodes * (cell.settings.rounds or 1)


def title_of(cell: "Cell") -> str:
    return ", ".join(filter(None, (cell.run, cell.point, f"seed {cell.seed}")))


def _lines(runs: int) -> "Watch":
    ended = 0

    def watch(cell: "Cell", said: dict[str, Any]) -> None:
        nonlocal ended
        if said["event"] == "progress":
            return
        ended += 1
        word = {"kept": "was done before", "done": "done", "failed": "failed"}[said["event"]]
        print(f"{ended}/{runs} {title_of(cell)}: {word}", file=sys.stderr, flush=True)

    return watch


def table(found: "Results", folder: "Folder", *, json: bool) -> None:
    """Our figure, its confidence interval, and the paper's in brackets."""
    experiment = found.experiment
    if json:
        as_json(as_dict(found))
        return
    from pfl_node.lab.measures import MEASURES

    rows = []
    for run in experiment.runs:
        for point in experiment.points:
            cells = [_shown(found, run, point, metric) for metric in experiment.metrics]
            rows.append([run, *([point] if point else []), *cells])
    titles = [_title(MEASURES[m].title, MEASURES[m].unit) for m in experiment.metrics]
    as_table(["run", *(["at"] if experiment.points != ("",) else []), *titles], rows)
    print(f"\nour mean ± half the 95 % interval over {len(experiment.seeds)} seeds (the paper's figure)")
    for verdict in found.verdicts():
        claim = verdict.claim
        told = "not measured" if verdict.difference is None else in_unit(claim.metric, verdict.difference)
        where = f" at {verdict.point}" if verdict.point else ""
        word = "holds" if verdict.holds else "DOES NOT HOLD"
        wanted = f"{claim.metric} of {claim.higher} above {claim.lower}{where}"
        print(f"{word}: {wanted} by {in_unit(claim.metric, claim.by)} or more: {told}")
    print(f"\n{folder.path}")


def as_dict(found: "Results") -> dict[str, Any]:
    experiment = found.experiment
    rows = []
    for run in experiment.runs:
        for point in experiment.points:
            row: dict[str, Any] = {"run": run, "point": point}
            for metric in experiment.metrics:
                estimate = found.estimate(run, point, metric)
                row[metric] = {
                    "mean": estimate.mean if estimate else None,
                    "half_width": estimate.half_width if estimate else None,
                    "values": list(estimate.values) if estimate else [],
                    "paper": found.figure(run, point, metric),
                }
            rows.append(row)
    claims = [
        {"metric": v.claim.metric, "higher": v.claim.higher, "lower": v.claim.lower, "by": v.claim.by}
        | {"point": v.point, "difference": v.difference, "holds": v.holds}
        for v in found.verdicts()
    ]
    return {"name": experiment.name, "scale": experiment.scale, "rows": rows, "claims": claims}


def _shown(found: "Results", run: str, point: str, metric: str) -> str:
    estimate, figure = found.estimate(run, point, metric), found.figure(run, point, metric)
    paper = "" if figure is None else f" ({in_unit(metric, figure)})"
    return ("-" if estimate is None else _spread(metric, estimate)) + paper


def _spread(metric: str, estimate: "Estimate") -> str:
    half = estimate.half_width
    return in_unit(metric, estimate.mean) + ("" if half is None else f" ± {in_unit(metric, half)}")


def in_unit(metric: str, value: float) -> str:
    from pfl_node.lab.measures import MEASURES, to_paper

    digits = {"%": 1, "rounds": 0, "s": 0, "MB": 1}.get(MEASURES[metric].unit)
    shown = to_paper(metric, value)
    return (
        f"{shown:,.{digits}f}" if digits is not None else f"{shown:.4g}" if abs(shown) < 1000 else f"{shown:,.0f}"
    )


def _title(title: str, unit: str) -> str:
    return f"{title}, {unit}" if unit and unit != "rounds" else title
