"""How `pfl-node lab audit` shows what the attacks found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from pfl_node.cli.output import as_json, as_table

if TYPE_CHECKING:
    from pfl_node.lab.audit.audit import AuditFinding

HEAD = ("attack on", "control", "AUC ± chance", "TPR at 1 % FPR", "epsilon", "AUC at most", "answers", "accuracy")


def show(findings: Iterable[AuditFinding], *, json: bool) -> None:
    """A line on stderr for each as it comes, as they take a while."""
    rows = []
    for found in findings:
        typer.echo(f"{found.attack}, {found.control}: AUC {found.found.auc:.3f}", err=True)
        rows.append(found)
    if all(row.control != "privacy.dp" for row in rows):
        typer.echo("privacy.dp was not tried, as it needs Opacus: pip install 'pfl-node[dp]'", err=True)
    if json:
        as_json({"findings": [row.row() for row in rows]})
        return
    as_table(HEAD, [_cells(row) for row in rows])


def _cells(row: AuditFinding) -> tuple[str, ...]:
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
