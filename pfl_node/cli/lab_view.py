"""What `pfl-node lab` prints: progress, results, comparisons and the findings of the audit."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from pfl_node.cli.output import as_json, as_table, as_tables, say
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.lab.audit.audit import AuditFinding
    from pfl_node.lab.experiment import Cell, Experiment
    from pfl_node.lab.report.result import Result
    from pfl_node.lab.result_comparison import ResultComparison
    from pfl_node.lab.runner import OnCell

AUDIT = ("attack on", "control", "AUC ± chance", "TPR at 1 % FPR", "epsilon", "AUC at most", "answers", "accuracy")


@contextmanager
def progress_bars(experiment: "Experiment", *, lines: bool = False) -> "Iterator[OnCell | None]":
    """On a terminal, a bar for all runs and one for each running one. Elsewhere nothing, or with `lines` a line
    for each run that ends."""
    if not sys.stderr.isatty():
        yield _lines(len(experiment.cells)) if lines else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from pfl_node.lab.report.phrases import cell_title
    from pfl_node.lab.runner import rounds_of

    texts = TextColumn("{task.description}"), TextColumn("{task.fields[at]}")
    columns = (texts[0], BarColumn(), texts[1], TimeElapsedColumn(), TimeRemainingColumn())
    running: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        rounds = sum(rounds_of(cell) for cell in experiment.cells)
        total = bars.add_task(f"{experiment.name}, {len(experiment.cells)} runs", total=rounds, at="")
        done: dict[str, int] = {}

        def on_cell(cell: "Cell", message: dict[str, Any]) -> None:
            if message["event"] == "progress":
                if cell.folder not in running:
                    running[cell.folder] = bars.add_task(cell_title(cell), total=message["total"], at="")
                bars.update(running[cell.folder], completed=message["done"], at=_stage(cell, message))
                done[cell.folder] = min(message["done"], rounds_of(cell))
            else:
                done[cell.folder] = rounds_of(cell)
                if cell.folder in running:
                    bars.remove_task(running.pop(cell.folder))
            bars.update(total, completed=sum(done.values()))

        yield on_cell


def _stage(cell: "Cell", message: dict[str, Any]) -> str:
    """The mean round of a simulation's nodes, or the round of a swarm's slowest node."""
    if message.get("started") is not None:
        return f"{message['started']} of {cell.nodes} nodes started"
    return f"round {message.get('slowest', message['done'] // cell.nodes)} of {cell.settings.rounds}"


def _lines(runs: int) -> "OnCell":
    from pfl_node.lab.report.phrases import cell_title

    ended = 0

    def on_cell(cell: "Cell", message: dict[str, Any]) -> None:
        nonlocal ended
        if message["event"] != "progress":
            ended += 1
            state = {"kept": "already done"}.get(message["event"], message["event"])
            print(f"{ended}/{runs} {cell_title(cell)}: {state}", file=sys.stderr, flush=True)

    return on_cell


def stop_on_mistake(on_cell: "OnCell | None") -> "OnCell":
    """Raises ConfigError for a user's mistake that shows before any round is done: all cells have it."""
    from pfl_node.lab.report.phrases import cell_title

    trained = False

    def check(cell: "Cell", message: dict[str, Any]) -> None:
        nonlocal trained
        trained = trained or message["event"] == "done" or message.get("done", 0) > 0
        if message.get("mistake") and not trained:
            raise ConfigError(f"{cell_title(cell)}: {_with_lab_flags(message['why'])}")
        if on_cell:
            on_cell(cell, message)

    return check


def _with_lab_flags(why: str) -> str:
    return why.replace("--set task.root=DIR", "--data-root DIR").replace("--set task.download=true", "--download")


def show(record: "Result", *, json: bool) -> None:
    from pfl_node.lab.report import phrases, result_table
    from pfl_node.lab.report.write import PAGE

    found, metrics = record.results, record.experiment.metrics
    for line in phrases.warnings(found):
        print(f"warning: {line}", file=sys.stderr)
    if json:
        as_json(result_table.as_dict(found))
        return
    columns = result_table.columns(record.experiment)
    rows = [result_table.texts(line) for line in result_table.lines(found, metrics)]
    as_tables(columns, rows, keep=len(columns) - len(metrics))
    say(f"\n{phrases.legend(found)}")
    if absent := result_table.missing(found):
        say(f"not finished: {'; '.join(map(phrases.cell_title, absent))}")
    for verdict in found.verdicts():
        judgement = phrases.judgement(verdict)
        say(f"{judgement if verdict.holds else judgement.upper()}: {phrases.verdict(verdict)}")
    print(f"\n{record.folder.path / PAGE}")


def show_comparison(found: "ResultComparison", *, json: bool) -> None:
    from pfl_node.lab import result_comparison

    if json:
        as_json(result_comparison.as_dict(found))
        return
    say(f"A  {found.a.name}\nB  {found.b.name}\n")
    as_table(result_comparison.columns(found), result_comparison.texts(found))
    print("\nmeans over the seeds that both have; B - A per seed, with half of its 95 % interval")
    if found.unlike:
        print()
        as_table(("what differs", "A", "B"), [(what, a, b) for what, a, b in found.unlike])


def show_audit(findings: "Iterable[AuditFinding]", *, json: bool) -> None:
    """Prints a line on stderr for each finding as it is made, because they take a while."""
    rows = []
    for found in findings:
        typer.echo(f"{found.attack}, {found.control}: AUC {found.found.auc:.3f}", err=True)
        rows.append(found)
    if all(row.control != "privacy.dp" for row in rows):
        typer.echo("privacy.dp was not tried because it needs Opacus: pip install 'pfl-node[dp]'", err=True)
    if json:
        as_json({"findings": [row.row() for row in rows]})
    else:
        as_table(AUDIT, [_audit_cells(row) for row in rows])


def _audit_cells(row: "AuditFinding") -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        row.attack,
        row.control,
        f"{row.found.auc:.3f} ± {row.found.chance:.3f}",
        f"{row.found.tpr:.1%}",
        number(row.epsilon, ".3g"),
        number(row.at_most.auc if row.at_most else None, ".3f"),
        number(row.answers, ".3g"),
        number(row.accuracy, ".1%"),
    )
