"""What `pfl-node lab` shows while runs are under way and when they are done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfl_node.cli.output import as_json, as_table, as_tables
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.lab.experiment import Cell, Experiment
    from pfl_node.lab.report.result import Result
    from pfl_node.lab.result_comparison import ResultComparison
    from pfl_node.lab.runner import Watch


@contextmanager
def watching(experiment: "Experiment") -> "Iterator[Watch]":
    """Bars on a terminal; elsewhere a line for each run that ends."""
    if not sys.stderr.isatty():
        yield _lines(len(experiment.cells))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from pfl_node.lab.report.phrases import cell_title

    texts = TextColumn("{task.description}"), TextColumn("{task.fields[at]}")
    columns = (texts[0], BarColumn(), texts[1], TimeElapsedColumn(), TimeRemainingColumn())
    under_way: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        whole = sum(work_of(cell) for cell in experiment.cells)
        total = shown.add_task(f"{experiment.name}, {len(experiment.cells)} runs", total=whole, at="")
        done: dict[str, int] = {}

        def watch(cell: "Cell", said: dict[str, Any]) -> None:
            if said["event"] == "progress":
                if cell.folder not in under_way:
                    under_way[cell.folder] = shown.add_task(cell_title(cell), total=said["total"], at="")
                shown.update(under_way[cell.folder], completed=said["done"], at=where(cell, said))
                done[cell.folder] = min(said["done"], work_of(cell))
            else:
                done[cell.folder] = work_of(cell)
                if cell.folder in under_way:
                    shown.remove_task(under_way.pop(cell.folder))
            shown.update(total, completed=sum(done.values()))

        yield watch


def where(cell: "Cell", said: dict[str, Any]) -> str:
    """How far a run is, in words: a simulation's nodes in the mean, a swarm's slowest."""
    if said.get("started") is not None:
        return f"{said['started']} of {cell.nodes} nodes are there"
    return f"round {said.get('slowest', said['done'] // cell.nodes)} of {cell.settings.rounds}"


def stopping(watch: "Watch") -> "Watch":
    """A user's mistake that shows before anything was learnt ends it all: it is one line, and soon corrected."""
    from pfl_node.lab.report.phrases import cell_title

    learnt = False

    def heard(cell: "Cell", said: dict[str, Any]) -> None:
        nonlocal learnt
        learnt = learnt or said["event"] == "done" or said.get("done", 0) > 0
        if said.get("mistake") and not learnt:
            raise ConfigError(f"{cell_title(cell)}: {in_lab_words(said['why'])}")
        watch(cell, said)

    return heard


def in_lab_words(why: str) -> str:
    """What there is to do about data, as the lab spells it."""
    return why.replace("--set task.root=DIR", "--data-root DIR").replace("--set task.download=true", "--download")


def work_of(cell: "Cell") -> int:
    return cell.nodes * (cell.settings.rounds or 1)


def _lines(runs: int) -> "Watch":
    from pfl_node.lab.report.phrases import cell_title

    ended = 0

    def watch(cell: "Cell", said: dict[str, Any]) -> None:
        nonlocal ended
        if said["event"] == "progress":
            return
        ended += 1
        word = {"kept": "was done before", "done": "done", "failed": "failed"}[said["event"]]
        print(f"{ended}/{runs} {cell_title(cell)}: {word}", file=sys.stderr, flush=True)

    return watch


def show(record: "Result", *, json: bool) -> None:
    """Our figure, its confidence interval, and the paper's in brackets; then the claims, and where the page is."""
    from pfl_node.lab.report import phrases, result_table
    from pfl_node.lab.report.write import PAGE

    found = record.results
    if json:
        as_json(result_table.as_dict(found))
        return
    metrics = record.experiment.metrics
    columns, rows = (
        result_table.columns(record.experiment),
        [result_table.texts(line) for line in result_table.lines(found, metrics)],
    )
    as_tables(columns, rows, keep=len(columns) - len(metrics))
    print(f"\n{phrases.legend(found)}")
    if absent := result_table.missing(found):
        print(f"not finished: {'; '.join(map(phrases.cell_title, absent))}")
    for verdict in found.verdicts():
        judgement = phrases.judgement(verdict)
        print(f"{judgement if verdict.holds else judgement.upper()}: {phrases.verdict(verdict)}")
    print(f"\n{record.folder.path / PAGE}")


def show_comparison(found: "ResultComparison", *, json: bool) -> None:
    """The figures side by side, then what else differs."""
    from pfl_node.lab import result_comparison

    if json:
        as_json(result_comparison.as_dict(found))
        return
    print(f"A  {found.a.name}\nB  {found.b.name}\n")
    as_table(result_comparison.columns(found), result_comparison.texts(found))
    print("\nmeans over the seeds that both have; B - A with half of its 95 % interval, seed by seed")
    if found.unlike:
        print()
        as_table(("what differs", "A", "B"), [(what, a, b) for what, a, b in found.unlike])
