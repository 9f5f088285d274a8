"""Writes the curves of a result as event files of TensorBoard, which is an optional dependency."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.measures import MEASURES, CellResult, mean_series, to_paper
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.report.result import Result
from pfl_node.store.atomic import make_directory, write_atomic
from pfl_node.tracking.trackers import scalar_event

FILE = "events.out.tfevents.0.pfl-node"  # a fixed name, so that a second export overwrites the first
CURVES = ("test_accuracy", "test_loss", "val_accuracy", "val_loss", "bytes_sent")
Scalar = tuple[str, int, float]  # tag, round, value


def export(record: Result, place: Path) -> int:
    """One TensorBoard run for every finished cell, in directories named as in the result. Returns their number."""
    for cell, found in record.results.found.items():
        run = place / cell.folder
        make_directory(run)
        write_atomic(run / FILE, events(scalars(record.experiment, cell, found)))
    return len(record.results.found)


def scalars(experiment: Experiment, cell: Cell, found: CellResult) -> Iterator[Scalar]:
    """Means over all nodes and over each cluster, by number of rounds done; and the final measures."""
    groups: list[tuple[str, int | None]] = [("all", None)]
    if len(found.sizes) > 1:
        groups += [(file_name(experiment.clusters.get(c, f"cluster {c}")), c) for c in sorted(found.sizes)]
    for what in dict.fromkeys((*CURVES, *_own_curves(found))):
        for name, cluster in groups:
            yield from ((f"{what}/{name}", r + 1, v) for r, v in mean_series(found, what, cluster).items())
    for metric in experiment.metrics:
        value = MEASURES[metric].of(found)
        if value is not None:
            yield f"final/{metric}", cell.settings.rounds or 0, to_paper(metric, value)


def _own_curves(found: CellResult) -> Iterator[str]:
    """The task's own metrics."""
    for rows in found.series.values():
        for row in rows.values():
            yield from (name for name in row if name.startswith(("val_", "test_")))


def events(found: Iterable[Scalar]) -> bytes:
    """An event file. All its times are 0, so that the same result gives the same bytes."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs TensorBoard: pip install 'pfl-node[tensorboard]'") from error
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    writer.write(Event(file_version="brain.Event:2").SerializeToString())
    for tag, step, value in found:
        writer.write(scalar_event(tag, step, value, time=0.0).SerializeToString())
    return buffer.getvalue()
