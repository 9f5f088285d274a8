"""One class for each tracker. Each imports its package when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pfl_node import plugin
from pfl_node.errors import ConfigError
from pfl_node.settings import TrackSettings
from pfl_node.types import RoundReport


@dataclass(frozen=True, slots=True)
class TrackedNode:
    """The node that a tracker's run belongs to."""

    id: str
    name: str
    run: str
    resumes: bool  # continue the run of an earlier process of this node
    parameters: Mapping[str, str]


class Tracker(Protocol):
    """One run of one node. Any method may raise."""

    def round(self, report: RoundReport) -> None: ...
    def close(self) -> None: ...


class TensorBoardTracker:
    """Event files in DIR/RUN/NODE."""

    def __init__(self, node: TrackedNode, directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(directory / node.run / node.name), flush_secs=5)

    def round(self, report: RoundReport) -> None:
        for name, figure in report.figures.items():
            self._writer.add_event(scalar_event(name, report.round, figure))

    def close(self) -> None:
        self._writer.close()


def scalar_event(tag: str, step: int, value: float, time: float | None = None) -> Any:
    """A protocol buffer of TensorBoard; `time` None: now."""
    from time import time as wall

    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(step=step, summary=summary, wall_time=wall() if time is None else time)


class MlflowTracker:
    """A run in the experiment that is named like the swarm's run."""

    def __init__(self, node: TrackedNode, uri: str) -> None:
        from mlflow import MlflowClient

        self._client = client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(node.run)
        experiment = found.experiment_id if found else client.create_experiment(node.run)
        self._run = (self._earlier(experiment, node) if node.resumes else None) or self._new(experiment, node)
        client.update_run(self._run, status="RUNNING")

    def _new(self, experiment: str, node: TrackedNode) -> str:
        run = self._client.create_run(experiment, run_name=node.name, tags={"pfl.node": node.id})
        for key, value in node.parameters.items():
            self._client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)

    def _earlier(self, experiment: str, node: TrackedNode) -> str | None:
        found = self._client.search_runs([experiment], f"tags.`pfl.node` = '{node.id}'", max_results=1)
        return found[0].info.run_id if found else None

    def round(self, report: RoundReport) -> None:
        from time import time

        from mlflow.entities import Metric

        moment = int(time() * 1000)
        rows = [Metric(name, figure, moment, report.round) for name, figure in report.figures.items()]
        self._client.log_batch(self._run, metrics=rows)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbTracker:
    """A run in the project, in the group that is named like the swarm's run."""

    def __init__(self, node: TrackedNode, project: str, *, offline: bool) -> None:
        import wandb

        own = {"id": f"{node.run}-{node.id}", "resume": "allow"} if node.resumes else {}
        self._run = wandb.init(
            project=project,
            group=node.run,
            name=node.name,
            config=dict(node.parameters),
            mode="offline" if offline else None,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
            **own,  # type: ignore[arg-type]
        )

    def round(self, report: RoundReport) -> None:
        self._run.log(dict(report.figures), step=report.round)

    def close(self) -> None:
        self._run.finish()


class CallTracker:
    """A function of the user, called with every RoundReport."""

    def __init__(self, call: Callable[[RoundReport], object]) -> None:
        self._call = call

    def round(self, report: RoundReport) -> None:
        self._call(report)

    def close(self) -> None: ...


def _called(place: str) -> CallTracker:
    call = plugin.load("track.call", place, ConfigError)
    if not callable(call):
        raise ConfigError(f"track.call {place}: expected a function, found {type(call).__name__}")
    return CallTracker(call)


Open = Callable[[TrackedNode], Tracker]


def openers(settings: TrackSettings) -> dict[str, Open]:
    """The configured trackers by name; none is opened yet."""
    found: dict[str, Open] = {}
    if (directory := settings.tensorboard) is not None:
        found["tensorboard"] = lambda node: TensorBoardTracker(node, directory)
    if (uri := settings.mlflow) is not None:
        found["mlflow"] = lambda node: MlflowTracker(node, uri)
    if (project := settings.wandb) is not None:
        found["wandb"] = lambda node: WandbTracker(node, project, offline=settings.wandb_offline)
    if (place := settings.call) is not None:
        found["call"] = lambda _: _called(place)
    return found
