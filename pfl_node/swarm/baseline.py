"""The same nodes without each other, to compare: `local` in a process of its own, as this one has no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pfl_node.errors import PflError
from pfl_node.settings import EvalSettings, PolicySettings, Settings
from pfl_node.swarm.process_pipes import ChildPipe


@dataclass(frozen=True, slots=True)
class LocalRun:
    """What the nodes reach alone, as means over them."""

    accuracy: float | None
    loss: float | None
    accuracy_by_cluster: dict[int, float]


class Baseline:
    """`spawn` before gRPC starts, `run` when there is time for it, `close` in any case."""

    def __init__(self, settings: Settings, nodes: int) -> None:
        local, last = PolicySettings(name="local"), EvalSettings(every=settings.rounds or 1)
        self.settings = settings.model_copy(update={"policy": local, "eval": last})
        self.nodes = nodes
        self.rounds_done = 0
        self.rounds_total = nodes * (settings.rounds or 0)
        self.begun = False
        self.alone: LocalRun | None = None
        self.failure: PflError | None = None
        self._child: ChildPipe | None = None

    async def spawn(self) -> None:
        """The process waits, without torch, until it is needed."""
        self._child = await ChildPipe.spawn("pfl_node.swarm.baseline_worker", "the comparison")

    async def run(self) -> None:
        """A failure is kept, not raised: the swarm's report is worth more."""
        assert self._child is not None
        self.begun = True
        order = {"settings": self.settings.model_dump(mode="json"), "nodes": self.nodes}
        self._child.order(json.dumps(order))
        try:
            async for said in self._child.events():
                if said["event"] == "progress":
                    self.rounds_done = said["rounds"]
                elif said["event"] == "summary":
                    self.alone = _alone(said["summary"])
        except PflError as error:
            self.failure = error

    @property
    def notes(self) -> list[str]:
        return [f"There is no comparison: {self.failure}"] if self.failure else []

    def skip(self) -> None:
        if self._child:
            self._child.kill()

    async def close(self) -> None:
        if self._child:
            await self._child.close()


def _alone(summary: dict[str, Any]) -> LocalRun:
    by_cluster = {int(c): accuracy for c, accuracy in summary["accuracy_by_cluster"].items()}
    return LocalRun(summary["accuracy"], summary["loss"], by_cluster)
