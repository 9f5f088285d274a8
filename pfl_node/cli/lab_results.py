"""`pfl-node lab export`: results for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from pfl_node.cli.lab import Result
from pfl_node.cli.output import say
from pfl_node.errors import PflError

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
