"""A result as tidy tables, one value per row: the nodes' reports of each round, the measures of each run, and the
paired tests. As CSV, and as Parquet if pyarrow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

from pfl_node.lab.experiment import Cell
from pfl_node.lab.export.paired_tests import PairedTest
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report.result import Result
from pfl_node.store.atomic import write_atomic

Row = Mapping[str, Any]
CELL = {"experiment": str, "run": str, "policy": str, "point": str, "seed": int}
ROUNDS = {**CELL, "node": str, "cluster": int, "round": int, "metric": str, "value": float}
RUNS = {**CELL, "metric": str, "value": float, "paper": float}
TESTS = {
    "experiment": str,
    "metric": str,
    "point": str,
    "a": str,
    "b": str,
    "seeds": int,
    "difference": float,
    "half_width": float,
    "p_t": float,
    "p_t_holm": float,
    "p_signs": float,
    "p_signs_holm": float,
}
OTHERS = ("event", "node", "round", "time")  # keys of a row of the journal that are not figures


def rounds(record: Result) -> Iterator[Row]:
    """The reports of every node after every round, from the journals."""
    for cell, found in record.results.found.items():
        own = _cell(record, cell)
        cluster = {n["id"]: n["cluster"] for n in found.nodes}
        for round, rows in sorted(found.series.items()):
            for node, row in sorted(rows.items()):
                place = {**own, "node": node, "cluster": cluster.get(node), "round": round + 1}
                for metric, value in _figures(row):
                    yield {**place, "metric": metric, "value": value}


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    for name, value in sorted(row.items()):
        if isinstance(value, Sequence) and not isinstance(value, str):  # such as the loss of each head
            value = {str(i): part for i, part in enumerate(value)}
        if isinstance(value, Mapping):
            yield from ((f"{name}.{part}", number) for part, number in _figures(value))
        elif isinstance(value, Real) and name not in OTHERS:
            yield name, float(value)


def runs(record: Result) -> Iterator[Row]:
    """The measures of every run with every seed, in their own units: accuracies are between 0 and 1."""
    metrics = dict.fromkeys([*record.experiment.metrics, *MEASURES])
    for cell in record.results.found:
        for metric in metrics:
            if (value := record.results.value(cell, metric)) is not None:
                paper = record.results.figure(cell.run, cell.point, metric)
                yield {**_cell(record, cell), "metric": metric, "value": value, "paper": paper}


def tests(record: Result, found: Iterable[PairedTest]) -> Iterator[Row]:
    for test in found:
        yield {
            "experiment": record.experiment.name,
            "metric": test.metric,
            "point": test.point,
            "a": test.a,
            "b": test.b,
            "seeds": test.seeds,
            "difference": test.difference.mean,
            "half_width": test.difference.half_width,
            "p_t": test.t,
            "p_t_holm": test.t_holm,
            "p_signs": test.signs,
            "p_signs_holm": test.signs_holm,
        }


def _cell(record: Result, cell: Cell) -> Row:
    own = {"run": cell.run, "policy": cell.settings.policy.name, "point": cell.point, "seed": cell.seed}
    return {"experiment": record.experiment.name, **own}


# -- files -----------------------------------------------------------------------------------------------------


def has_parquet() -> bool:
    return find_spec("pyarrow") is not None


def write(place: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> list[Path]:
    """PLACE.csv, and PLACE.parquet if pyarrow is installed. An unknown value is empty or null."""
    rows = list(rows)
    written = [place.with_suffix(".csv")]
    write_atomic(written[0], as_csv(columns, rows).encode())
    if has_parquet():
        written.append(place.with_suffix(".parquet"))
        write_atomic(written[1], as_parquet(columns, rows))
    return written


def as_csv(columns: Mapping[str, type], rows: Iterable[Row]) -> str:
    held = io.StringIO()
    writer = csv.DictWriter(held, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return held.getvalue()


def as_parquet(columns: Mapping[str, type], rows: Iterable[Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    held = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), held, compression="zstd")
    return held.getvalue()
