"""`pfl-node lab export`, `record`, `publish`, `verify`: results for other programs and for readers."""

from pathlib import Path
from typing import Annotated

import typer

from pfl_node.cli.lab import Result
from pfl_node.cli.output import as_table, say
from pfl_node.errors import ConfigError, PflError

To = Annotated[Path, typer.Option("--to", metavar="OUT", help="Directory of the files; created if missing.")]


def export(result: Result, to: To) -> None:
    """Write tidy CSV and Parquet, LaTeX tables, figures as PDF and SVG, and paired tests over the seeds."""
    from pfl_node.lab.export.write_export import export as write
    from pfl_node.lab.report.result import reopen

    record = reopen(result)
    if not record.results.found:
        raise PflError(f"{result}: no run has finished yet")
    files, notes = write(record, to)
    for note in notes:
        typer.echo(note, err=True)
    say("\n".join(map(str, files)))


Records = Annotated[Path, typer.Option("--records", metavar="DIR", help="Directory of the records.")]
RecordFile = Annotated[Path, typer.Argument(metavar="RECORD", help="A file that `pfl-node lab record` wrote.")]
NAME, NOTE = (
    "Name of the record; default: the experiment with its scale, sweep and backend.",
    "A sentence for the page; repeatable.",
)
ADD = "Add the runs to an existing record of that name, which may come from another machine."


def record(
    result: Result,
    records: Records = Path("docs/records"),
    name: Annotated[str, typer.Option(metavar="NAME", help=NAME)] = "",
    note: Annotated[list[str] | None, typer.Option(metavar="TEXT", help=NOTE)] = None,
    add: Annotated[bool, typer.Option("--add", help=ADD)] = False,
) -> None:
    """Write a compact record of a result: figures of each seed, claims, commit, and digests of its journals."""
    from pfl_node.lab.publish.extend_record import extended
    from pfl_node.lab.publish.records import load, record_of, save
    from pfl_node.lab.report.phrases import file_name
    from pfl_node.lab.report.result import reopen

    if name and not file_name(name):
        raise ConfigError(f"--name {name} has no ASCII letter or digit for the name of a file")
    found = reopen(result)
    if not found.results.found:
        raise PflError(f"{result}: no run has finished yet")
    made = record_of(found, file_name(name), note or (), records.parent / "results")
    if add:
        made = extended(load(records / f"{made.name}.json"), made)
    if changed := [commit[:12] for commit in made.commits if commit.endswith("+")]:
        what = f"made with uncommitted changes at {', '.join(changed)}"
        typer.echo(f"warning: {result} was {what}, so nobody else can repeat it", err=True)
    say(str(save(made, records)))


def publish(
    records: Records = Path("docs/records"),
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The page.")] = Path("docs/results.md"),
) -> None:
    """Write the page of results from the records, each with the paper's figures and its claims."""
    from pfl_node.lab.publish import at_a_glance, results_page
    from pfl_node.lab.publish.records import load_all
    from pfl_node.store.atomic import write_atomic

    found = load_all(records)
    text = results_page.page(found, results_page.appendices(records))
    write_atomic(to, text.encode())
    counts = ", ".join(f"{kind}: {n}" for kind, n in sorted(at_a_glance.count(found).items()))
    say(f"{to}: {len(found)} records; {counts}")


def verify(record: RecordFile, result: Result) -> int:
    """Compare the journals of a rerun with the digests of a record."""
    from pfl_node.lab.publish.records import load, other_versions
    from pfl_node.lab.publish.records import verify as check
    from pfl_node.lab.report.result import reopen

    known, rerun = load(record), reopen(result)
    found = check(known, rerun)
    as_table(("run", "journal"), [(one.folder, one.outcome) for one in found])
    if all(one.outcome == "missing" for one in found):
        raise PflError(f"{result} has none of the runs of {record}")
    if all(one.outcome != "different" for one in found):
        return 0
    if others := other_versions(known, rerun):
        typer.echo(f"other kernels and versions round differently: {'; '.join(others)}", err=True)
    return 1
