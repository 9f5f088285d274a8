"""`pfl-node lab`: reproduces the experiments of the papers."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pfl_node.cli.exit_codes import Verbs
from pfl_node.cli.options import Format, Nodes, Sets
from pfl_node.cli.output import as_facts, as_json, as_table, say
from pfl_node.errors import ConfigError, PflError

if TYPE_CHECKING:
    from pfl_node.lab.experiment import Experiment

app = typer.Typer(name="lab", cls=Verbs, help="Reproduce the experiments of the papers.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `pfl-node lab list`, or a FILE.toml.")]
Scale = Annotated[
    Literal["quick", "paper"], typer.Option(help="A small size that shows the same ranking, or the paper's own.")
]
Seeds = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of seeds; default: as in the spec.")]
Backend = Annotated[
    Literal["sim", "swarm"], typer.Option(help="Simulate, or run real nodes on this machine over gRPC.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Parallel simulations, or processes of a swarm; default: one per core."),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results directory; default: ./lab/NAME-SCALE[-swarm].")
]
Root = Annotated[Path | None, typer.Option("--data-root", metavar="DIR", help="Directory of the data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Download missing data sets.")]
Result = Annotated[Path, typer.Argument(metavar="DIR", help="A results directory of `pfl-node lab run`.")]
Side = Annotated[Path, typer.Argument(metavar="DIR[/RUN]", help="A results directory, or one run in it.")]
Tensorboard = Annotated[Path | None, typer.Option(metavar="LOGDIR", help="Also write the curves for TensorBoard.")]


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
    out: Out = None,
    data_root: Root = None,
    download: Download = False,
    sets: Sets = None,
    format: Format = "table",
) -> int:
    """Run an experiment, or resume it; then write its table, plots and report."""
    from pfl_node.cli.lab_view import progress_bars, stop_on_mistake
    from pfl_node.cli.lab_view import show as show_result
    from pfl_node.lab import results, runner
    from pfl_node.lab.report.result import Result
    from pfl_node.lab.report.write import write
    from pfl_node.lab.results_dir import ResultsDir
    from pfl_node.lab.spec import Overrides, load

    data = _data(data_root, download)
    try:
        overrides = Overrides(sets=[*(sets or ()), *data])
        experiment = load(name, scale, seeds=seeds, overrides=overrides, plugins=True).on(backend)
    except ConfigError as error:
        if data and ("no option 'root'" in str(error) or "no option 'download'" in str(error)):
            raise ConfigError(f"{name} uses no data set: omit --data-root and --download") from error
        raise
    place = f"{experiment.name}-{scale}" + ("" if backend == "sim" else f"-{backend}")
    folder = ResultsDir(out or Path("lab") / place)
    with progress_bars(experiment, lines=True) as on_cell:
        failures = runner.run(experiment, folder, workers=workers, on_cell=stop_on_mistake(on_cell))
    found = results.read(experiment, folder)
    if not found.found and failures:
        raise PflError(f"no run succeeded: {failures[0].why}")
    for failure in failures:
        typer.echo(f"{failure.cell.folder} failed: {failure.why}", err=True)
    record = Result(folder, found)
    _note(write(record))
    show_result(record, json=format == "json")
    return 1 if failures else 0


@app.command()
def report(result: Result, tensorboard: Tensorboard = None, format: Format = "table") -> None:
    """Write the table, the plots and the page of a result again, from its directory alone."""
    from pfl_node.cli.lab_view import show as show_result
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
    from pfl_node.cli.lab_view import show_comparison
    from pfl_node.lab.result_comparison import compare as compared
    from pfl_node.lab.result_comparison import side

    show_comparison(compared(side(a), side(b)), json=format == "json")


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
    from pfl_node.cli.lab_view import show_audit
    from pfl_node.daemon.preflight import check
    from pfl_node.lab.audit.audit import audit as run_audit
    from pfl_node.lab.audit.audit import with_privacy
    from pfl_node.settings.load import load_settings

    given = {"policy.name": policy, "rounds": rounds, "seed": seed}
    settings = load_settings(overrides=given, sets=sets or ())
    check(with_privacy(settings, oracle=True))
    show_audit(run_audit(settings, nodes, trials), json=format == "json")


def _data(root: Path | None, download: bool) -> list[str]:
    """The data options as settings. They come last, because setting a task drops the options of another one."""
    from json import dumps

    where = [f"task.root={dumps(str(root.resolve()))}"] if root else []
    return where + (["task.download=true"] if download else [])


def _note(line: str | None) -> None:
    if line:
        typer.echo(line, err=True)
