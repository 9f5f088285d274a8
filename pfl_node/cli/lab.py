"""`pfl-node lab`: reproduces the experiments of the papers, and shows progress, results and comparisons."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pfl_node.cli.exit_codes import Verbs
from pfl_node.cli.options import Format, Nodes, Sets
from pfl_node.cli.output import as_facts, as_json, as_table, as_tables, say
from pfl_node.errors import ConfigError, PflError

if TYPE_CHECKING:
    from pfl_node.lab.audit.audit import AuditFinding
    from pfl_node.lab.experiment import Cell, Experiment
    from pfl_node.lab.report import result as reports
    from pfl_node.lab.runner import OnCell

app = typer.Typer(name="lab", cls=Verbs, help="Reproduce the experiments of the papers.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `pfl-node lab list`, or a FILE.toml.")]
Scale = Annotated[Literal["quick", "paper"], typer.Option(help="A size that takes minutes, or the paper's own.")]
Seeds = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of seeds; default: as in the spec.")]
Backend = Annotated[
    Literal["sim", "swarm"], typer.Option(help="Simulate, or run real nodes on this machine over gRPC.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Parallel simulations, or processes of a swarm; default: one per core."),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V,V,…", help="Repeat all runs with each value of a setting; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="LABEL", help="Only this run, or only at this point; repeatable."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--executor", metavar="URL", help="dask://HOST:PORT: run on the workers of a Dask cluster."),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results directory; default: ./lab/NAME-SCALE[-SWEEP][-swarm].")
]
Root = Annotated[Path | None, typer.Option("--data-root", metavar="DIR", help="Directory of the data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Download missing data sets.")]
Result = Annotated[Path, typer.Argument(metavar="DIR", help="A results directory of `pfl-node lab run`.")]
Side = Annotated[Path, typer.Argument(metavar="DIR[/RUN]", help="A results directory, or one run in it.")]
Tensorboard = Annotated[Path | None, typer.Option(metavar="LOGDIR", help="Also write the curves for TensorBoard.")]
AUDIT = (
    "attack on",
    "control",
    "AUC ± chance",
    "TPR at 1 % FPR",
    "epsilon",
    "reported",
    "AUC at most",
    "answers",
    "accuracy",
)


@app.command("list")
def list_(format: Format = "table") -> None:
    """List the built-in experiments."""
    from pfl_node.lab import spec

    specs = {name: spec.parse(*spec.read(name)) for name in spec.shipped()}
    if format == "json":
        rows = [{"name": n, "title": s.title, "paper": s.paper} for n, s in specs.items()]
        as_json({"experiments": rows})
    else:
        as_table(("experiment", "title", "paper"), [(n, s.title, s.paper) for n, s in specs.items()])


@app.command()
def show(name: Name, scale: Scale = "quick", seeds: Seeds = None, format: Format = "table") -> None:
    """Show the runs of an experiment and the paper's figures."""
    from pfl_node.lab.measures import to_paper
    from pfl_node.lab.spec import load

    experiment = load(name, scale, seeds=seeds)
    if format == "json":
        as_json(describe(experiment))
        return
    as_facts(
        {
            "title": experiment.title,
            "paper": experiment.paper,
            "scale": f"{scale}: {len(experiment.cells)} runs, seeds {list(experiment.seeds)}",
        }
    )
    say(f"\n{experiment.about}\n" if experiment.about else "")
    figures = {(f.run, f.point, f.metric): f"{to_paper(f.metric, f.value):g}" for f in experiment.figures}
    cells = {(c.run, c.point): c for c in experiment.cells}
    rows = [
        [run, point, c.settings.policy.name, c.nodes, c.settings.rounds]
        + [figures.get((run, point, metric), "") for metric in experiment.metrics]
        for (run, point), c in cells.items()
    ]
    as_table(("run", "at", "policy", "nodes", "rounds", *(f"paper: {m}" for m in experiment.metrics)), rows)


def describe(experiment: "Experiment") -> dict[str, Any]:
    cells = [
        {"run": c.run, "point": c.point, "seed": c.seed, "nodes": c.nodes}
        | {"settings": c.settings.model_dump(mode="json")}
        for c in experiment.cells
    ]
    figures = [asdict(figure) for figure in experiment.figures]
    return {"name": experiment.name, "scale": experiment.scale, "cells": cells, "figures": figures}


@app.command()
def run(
    name: Name,
    scale: Scale = "quick",
    backend: Backend = "sim",
    seeds: Seeds = None,
    workers: Workers = None,
    executor: Cluster = None,
    out: Out = None,
    data_root: Root = None,
    download: Download = False,
    sets: Sets = None,
    sweeps: Sweeps = None,
    only: Only = None,
    format: Format = "table",
) -> int:
    """Run an experiment, or resume it; then write its table, plots and report."""
    from pfl_node.lab import results, runner
    from pfl_node.lab.report.result import Result
    from pfl_node.lab.report.write import write
    from pfl_node.lab.results_dir import ResultsDir
    from pfl_node.lab.spec import load

    _check_executor(executor, backend, workers)
    data, given, swept = _data(data_root, download), sets or (), sweeps or ()
    experiment = load(name, scale, seeds=seeds, sets=given, sweeps=swept, data=data, plugins=True).on(backend)
    chosen = experiment.only(only or ())
    folder = ResultsDir(out or _default_place(experiment))
    with _interruptible(), progress_bars(chosen, lines=True) as on_cell:
        watch = stop_on_mistake(on_cell)
        failures = runner.run(chosen, folder, workers=workers, on_cell=watch, cluster=executor)
    found = results.read(experiment, folder)
    if not found.found and failures:
        raise PflError(f"no run succeeded: {failures[0].why}")
    for failure in failures:
        _note(f"{failure.cell.folder} failed: {failure.why}")
    record = Result(folder, found)
    _note(write(record))
    show_result(record, json=format == "json")
    return 1 if failures else 0


def _default_place(experiment: "Experiment") -> Path:
    from pfl_node.lab.sweeps import keys_of

    backend = ["swarm"] if experiment.backend == "swarm" else []
    return Path("lab") / "-".join([experiment.name, experiment.scale, *keys_of(experiment.sweeps), *backend])


def _check_executor(url: str | None, backend: str, workers: int | None) -> None:
    from pfl_node.lab import executors

    if url is None:
        return
    executors.check(url)
    if backend == "swarm":
        raise ConfigError("--executor is for simulations: a swarm of --backend swarm runs on this machine")
    if workers is not None:
        raise ConfigError("--workers is the number of processes on this machine: omit it with --executor")


def _data(root: Path | None, download: bool) -> list[str]:
    """The data options as settings."""
    from json import dumps

    where = [f"task.root={dumps(str(root.resolve()))}"] if root else []
    return where + (["task.download=true"] if download else [])


@app.command()
def report(result: Result, tensorboard: Tensorboard = None, format: Format = "table") -> None:
    """Write the table, the plots and the page of a result again, from its directory alone."""
    from pfl_node.lab.report.result import reopen
    from pfl_node.lab.report.write import write

    record = reopen(result)
    if not record.results.found:
        raise PflError(f"{result}: no run has finished yet")
    _note(write(record))
    if tensorboard:
        from pfl_node.lab.tensorboard import export

        _note(f"{export(record, tensorboard)} runs for TensorBoard: tensorboard --logdir {tensorboard}")
    show_result(record, json=format == "json")


@app.command()
def compare(a: Side, b: Side, format: Format = "table") -> None:
    """Compare two results, or two runs: the difference of their figures, and what else differs."""
    from pfl_node.lab import result_comparison as comparison

    found = comparison.compare(comparison.side(a), comparison.side(b))
    if format == "json":
        as_json(comparison.as_dict(found))
        return
    say(f"A  {found.a.name}\nB  {found.b.name}\n")
    as_table(comparison.columns(found), comparison.texts(found))
    print("\nmeans over the seeds that both have; B - A per seed, with half of its 95 % interval")
    if found.unlike:
        print()
        as_table(("what differs", "A", "B"), found.unlike)


@app.command()
def audit(
    nodes: Nodes = 4,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of training.")] = 30,
    trials: Annotated[
        int, typer.Option(min=100, metavar="N", help="Attacks on members, and as many on others.")
    ] = 2000,
    policy: Annotated[str, typer.Option(help="Their algorithm.")] = "local",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    sets: Sets = None,
    format: Format = "table",
) -> None:
    """Run membership-inference attacks on nodes, with and without the privacy controls."""
    from pfl_node.daemon.preflight import check
    from pfl_node.lab.audit.audit import audit as run_audit
    from pfl_node.lab.audit.audit import with_privacy
    from pfl_node.settings.load import load_settings

    given = {"policy.name": policy, "rounds": rounds, "seed": seed}
    settings = load_settings(overrides=given, sets=sets or ())
    check(with_privacy(settings, oracle=True, dp=True))
    findings = []
    for found in run_audit(settings, nodes, trials):
        _note(f"{found.attack}, {found.control}: AUC {found.found.auc:.3f}")  # each takes a while
        findings.append(found)
    if all(found.control != "privacy.dp" for found in findings):
        _note("privacy.dp was not tried because it needs Opacus: pip install 'pfl-node[dp]'")
    if format == "json":
        as_json({"findings": [asdict(found) for found in findings]})
    else:
        as_table(AUDIT, map(_audit_cells, findings))


# -- output ---------------------------------------------------------------------------------------------------


@contextmanager
def progress_bars(experiment: "Experiment", *, lines: bool = False) -> "Iterator[OnCell]":
    """On a terminal, show a bar for all runs and one for each active run. Elsewhere print nothing or, with
    `lines`, a line for each run that ends."""
    if not sys.stderr.isatty():
        yield _lines(len(experiment.cells)) if lines else lambda *_: None
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
            elif message["event"] == "lost":
                bars.console.print(_lost(cell, message), highlight=False)
            else:
                done[cell.folder] = rounds_of(cell)
                if cell.folder in running:
                    bars.remove_task(running.pop(cell.folder))
            bars.update(total, completed=sum(done.values()))

        yield on_cell


@contextmanager
def _interruptible() -> Iterator[None]:
    """After Ctrl-C the bars are gone, so say that nothing else is."""
    try:
        yield
    except KeyboardInterrupt:
        _note("interrupted: the same command continues")
        raise


def _lost(cell: "Cell", message: dict[str, Any]) -> str:
    from pfl_node.lab.report.phrases import cell_title

    return f"{cell_title(cell)}: {message['why']}; it resumes"


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
        if message["event"] == "lost":
            _note(_lost(cell, message))
        elif message["event"] != "progress":
            ended += 1
            state = {"kept": "already done"}.get(message["event"], message["event"])
            _note(f"{ended}/{runs} {cell_title(cell)}: {state}")

    return on_cell


def stop_on_mistake(on_cell: "OnCell") -> "OnCell":
    """Raises ConfigError for a user's mistake that is found before any round is done: it affects all cells."""
    from pfl_node.lab.report.phrases import cell_title

    trained = False

    def check(cell: "Cell", message: dict[str, Any]) -> None:
        nonlocal trained
        trained = trained or message["event"] == "done" or message.get("done", 0) > 0
        if message.get("mistake") and not trained:
            raise ConfigError(f"{cell_title(cell)}: {_with_lab_flags(message['why'])}")
        on_cell(cell, message)

    return check


def _with_lab_flags(why: str) -> str:
    return why.replace("--set task.root=DIR", "--data-root DIR").replace("--set task.download=true", "--download")


def show_result(record: "reports.Result", *, json: bool) -> None:
    from pfl_node.lab.report import phrases, result_table
    from pfl_node.lab.report.write import PAGE

    found, metrics = record.results, record.experiment.metrics
    for line in phrases.warnings(found):
        _note(f"warning: {line}")
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
        shown = judgement.upper() if judgement in phrases.AGAINST else judgement
        say(f"{shown}: {phrases.verdict(verdict)}")
    print(f"\n{record.folder.path / PAGE}")


def _audit_cells(row: "AuditFinding") -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        row.attack,
        row.control,
        f"{row.found.auc:.3f} ± {row.found.chance:.3f}",
        f"{row.found.tpr:.1%}",
        number(row.epsilon, ".3g"),
        number(row.reported, ".3g"),
        number(row.at_most.auc if row.at_most else None, ".3f"),
        number(row.answers, ".3g"),
        number(row.accuracy, ".1%"),
    )


def _note(line: str | None) -> None:
    if line:
        typer.echo(line, err=True)
