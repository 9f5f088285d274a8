"""Writes the report of a result into its folder: results.json, result_table.md, plots/, report.html."""

from __future__ import annotations

import json

from pfl_node.jsonable import plain
from pfl_node.lab.experiment import Experiment
from pfl_node.lab.report import result_table, style
from pfl_node.lab.report.page import page
from pfl_node.lab.report.render import DRAW, draw
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.run_info import facts as facts_of
from pfl_node.store.atomic import write_atomic

RESULTS, TABLE, PAGE = "results.json", "table.md", "report.html"
NO_PLOTS = "there are no plots, as matplotlib is not installed: pip install 'pfl-node[lab]'"


def write(record: Result) -> str | None:
    """All of it; what could not be made, in one line."""
    place = record.folder.path
    facts = {"command": record.command, "environment": dict(record.facts)}
    times = {f"{what}_seconds": record.seconds(what) for what in ("wall", "cpu")}
    found = plain({**result_table.as_dict(record.results), **facts, **times})
    write_atomic(place / RESULTS, json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n")
    write_atomic(place / TABLE, result_table.markdown(record.results, dict(facts_of(record))).encode())
    drawings = draw(record, wanted(record.experiment)) if style.is_there() else None
    if drawings and not record.experiment.plots:  # nobody asked for those that have nothing to show
        drawings = {name: panels for name, panels in drawings.items() if panels}
    write_atomic(place / PAGE, page(record, drawings).encode())
    return NO_PLOTS if drawings is None else None


def wanted(experiment: Experiment) -> list[str]:
    """The spec's plots, or all that there are; a sweep is always shown."""
    swept = ["sweep"] if len(experiment.points) > 1 else []
    return list(dict.fromkeys([*swept, *(experiment.plots or DRAW)]))
