"""The same nodes without each other, for comparison: a simulation of `local` in a worker process, because the
swarm's parent does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pfl_node.errors import PflError
from pfl_node.settings import PolicySettings, Settings
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.worker_process import SIMULATE, WorkerProcess


@dataclass(frozen=True, slots=True)
class LocalRun:
    accuracy: float | None
    loss: float | None
    accuracy_by_cluster: dict[int, float]
    metrics: dict[str, float] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        return {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}.get(name)


class Baseline:
    """`spawn` it before gRPC starts, `run` it when the cores have time, `close` it in any case."""

    def __init__(self, settings: Settings, nodes: int) -> None:
        local, last = (
            PolicySettings(name="local"),
            settings.eval.model_copy(update={"every": settings.rounds or 1}),
        )
        self.settings = settings.model_copy(update={"policy": local, "eval": last})
        self.nodes = nodes
        self.rounds_done = 0
        self.rounds_total = nodes * (settings.rounds or 0)
        self.begun = False
        self.alone: LocalRun | None = None
        self.failure: PflError | None = None
        self._worker: WorkerProcess | None = None

    async def spawn(self) -> None:
        """The process waits without torch until `run`."""
        self._worker = await WorkerProcess.spawn(SIMULATE, "the comparison")

    async def run(self) -> None:
        """Keeps a failure instead of raising it: the report of the swarm matters more."""
        assert self._worker is not None
        self.begun = True
        self._worker.order(RunOrder(self.settings, self.nodes).dump())
        try:
            async for message in self._worker.messages():
                if message["event"] == "done":
                    self.alone = _alone(message["summary"])
                    return
                self.rounds_done = message["done"]
        except PflError as error:
            self.failure = error

    @property
    def notes(self) -> list[str]:
        return [f"There is no comparison: {self.failure}"] if self.failure else []

    def skip(self) -> None:
        if self._worker:
            self._worker.kill()

    async def close(self) -> None:
        if self._worker:
            await self._worker.close()


def _alone(summary: dict[str, Any]) -> LocalRun:
    by_cluster = {int(c): accuracy for c, accuracy in summary["accuracy_by_cluster"].items()}
    return LocalRun(summary["accuracy"], summary["loss"], by_cluster, summary.get("metrics", {}))
