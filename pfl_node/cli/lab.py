"""`pfl-node lab`: the experiments of the papers, each with one command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pfl_node.cli.exit_codes import Verbs
from pfl_node.cli.options import Format
from pfl_node.cli.output import as_facts, as_json, as_table
from pfl_node.errors import ConfigError, PflError

if TYPE_CHECKING:
    from pfl_node.lab.experiment import Experiment

app = typer.Typer(name="lab", cls=Verbs, help="The experiments of the papers.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `pfl-node lab list`, or a FILE.toml.")]
Scale = Annotated[
    Literal["quick", "paper"], typer.Option(help="A size that shows the same order, or that of the paper.")
]
Seeds = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many seeds; otherwise as the spec says.")]
Backend = Annotated[
    Literal["sim", "swarm"], typer.Option(help="Simulate, or run real nodes on this machine over gRPC.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Simulations at a time, or processes of a swarm; otherwise one per core."
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where results go; otherwise ./lab/NAME-SCALE[-swarm].")
]
Root = Annotated[Path | None, typer.Option("--data-root", metavar="DIR", help="Where data sets are.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch data sets that are missing.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for all runs; may be repeated."),
]
Result = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `pfl-node lab run` made.")]
Side = Annotated[Path, typer.Argument(metavar="DIR[/RUN]", help="A result's folder, or one run of it.")]
Tensorboard = Annotated[
    Path | None, typer.Option(metavar="LOGDIR", help="Write the curves for TensorBoard there, too.")
]


@app.command("list")
def list_(format: Format = "table") -> int:
    """The experiments that come along."""
    from pfl_node.lab import spec

    specs = {name: spec.parse(*spec.read(name)) for name in spec.shipped()}
    if format == "json":
        rows = [{"name": n, "title": s.title, "paper": s.paper} for n, s in specs.items()]
        as_json({"experiments": rows})
    else:
        as_table(("experiment", "what it is", "paper"), [(n, s.title, s.paper) for n, s in specs.items()])
    return 0


@app.command()
def show(name: Name, scale: Scale = "quick", seeds: Seeds = None, format: Format = "table") -> int:
    """What an experiment runs, and what its paper says."""
    from pfl_node.lab.measures import to_paper
    from pfl_node.lab.spec import load

    experiment = load(name, scale, seeds=seeds)
    if format == "json":
        as_json(described(experiment))
        return 0
    as_facts(
        {
            "title": experiment.title,
            "paper": experiment.paper,
            "scale": f"{scale}: {len(experiment.cells)} runs, seeds {list(experiment.seeds)}",
        }
    )
    print(f"\n{experiment.about}\n" if experiment.about else "")
    figures = {(f.run, f.point, f.metric): f"{to_paper(f.metric, f.value):g}" for f in experiment.figures}
    cells = {(c.run, c.point): c for c in experiment.cells}
    rows = [
        [run, point, c.settings.policy.name, c.nodes, c.settings.rounds]
        + [figures.get((run, point, metric), "") for metric in experiment.metrics]
        for (run, point), c in cells.items()
    ]
    as_table(("run", "at", "policy", "nodes", "rounds", *(f"paper: {m}" for m in experiment.metrics)), rows)
    return 0


def described(experiment: "Experiment") -> dict[str, Any]:
    cells = [
        {
            "run": c.run,
            "point": c.point,
            "seed": c.seed,
            "nodes": c.nodes,
            "settings": c.settings.model_dump(mode="json"),
        }
        for c in experiment.cells
    ]
    figures = [{"run": f.run, "point": f.point, "metric": f.metric, "value": f.value} for f in experiment.figures]
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
    """Run an experiment, or what is left of it; then its table, plots and report."""
    from pfl_node.cli.lab_view import progress_bars, stop_on_mistake
    from pfl_node.cli.lab_view import show as show_result
    from pfl_node.lab import results, runner
    from pfl_node.lab.report.result import Result
    from pfl_node.lab.report.write import write
    from pfl_node.lab.results_dir import ResultsDir
    from pfl_node.lab.spec import Wishes, load

    data = _data(data_root, download)
    try:
        experiment = load(name, scale, seeds=seeds, wishes=Wishes(sets=[*(sets or ()), *data])).on(backend)
    except ConfigError as error:
        if data and ("no option 'root'" in str(error) or "no option 'download'" in str(error)):
            raise ConfigError(f"{name} reads no data set: leave out --data-root and --download") from error
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
    _say(write(record))
    show_result(record, json=format == "json")
    return 1 if failures else 0


@app.command()
def report(result: Result, tensorboard: Tensorboard = None, format: Format = "table") -> int:
    """Write the table, the plots and the page of a result anew, from its folder alone."""
    from pfl_node.cli.lab_view import show as show_result
    from pfl_node.lab.report.result import reopen
    from pfl_node.lab.report.write import write

    record = reopen(result)
    if not record.results.found:
        raise PflError(f"{result}: no run is finished yet, so there is nothing to report")
    _say(write(record))
    if tensorboard:
        from pfl_node.lab.tensorboard import export

        _say(f"{export(record, tensorboard)} runs for TensorBoard: tensorboard --logdir {tensorboard}")
    show_result(record, json=format == "json")
    return 0


@app.command()
def compare(a: Side, b: Side, format: Format = "table") -> int:
    """Two results side by side, or two runs: the same cells, their difference, and what else differs."""
    from pfl_node.cli.lab_view import show_comparison
    from pfl_node.lab.result_comparison import compare as compared
    from pfl_node.lab.result_comparison import side

    show_comparison(compared(side(a), side(b)), json=format == "json")
    return 0


@app.command()
def audit(
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes that share the digits.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="That they train for.")] = 30,
    trials: Annotated[int, typer.Option(min=100, metavar="N", help="Attacks on members, and on others.")] = 2000,
    policy: Annotated[str, typer.Option(help="That they follow.")] = "local",
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is left to chance.")] = 0,
    sets: Sets = None,
    format: Format = "table",
) -> int:
    """Attack nodes: which samples do they train on? With and without the privacy controls."""
    from pfl_node.cli.lab_view import show_audit
    from pfl_node.daemon.preflight import check
    from pfl_node.lab.audit.audit import audited, with_privacy
    from pfl_node.settings.load import load_settings

    given = {"policy.name": policy, "rounds": rounds, "seed": seed}
    settings = load_settings(overrides=given, sets=sets or ())
    check(with_privacy(settings, oracle=True))
    show_audit(audited(settings, nodes, trials), json=format == "json")
    return 0


def _data(root: Path | None, download: bool) -> list[str]:
    """The flags about data as settings, after all others: a task that is set drops what was said of another."""
    from json import dumps

    where = [f"task.root={dumps(str(root.resolve()))}"] if root else []
    return where + (["task.download=true"] if download else [])


def _say(line: str | None) -> None:
    if line:
        typer.echo(line, err=True)
