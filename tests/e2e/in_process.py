"""Real nodes inside the test's own process: real gRPC on localhost, real training, one trainer for all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.learning.trainer import TrainerThread
from pfl_node.settings import Settings
from pfl_node.sim.attacks.malicious import role_of

T = TypeVar("T")
DEADLINE = 60.0  # seconds for anything to happen on a busy machine
QUICK: dict[str, Any] = {
    "task": {"samples": 40},
    "start": {"wait": 0},
    "store": {"checkpoint_every": 1000},
    "membership": {"probe_interval": 0.5, "probe_timeout": 0.25, "gossip_interval": 0.05, "sync_interval": 1.0},
}


class Life:
    """A node and its run."""

    def __init__(self, node: DaemonNode) -> None:
        self.node = node
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.task: asyncio.Task[str] | None = None
        self._closed = False

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def round(self) -> int:
        return self.node.policy.round if self.node.policy else 0

    def rows(self, event: str) -> list[Mapping[str, Any]]:
        """What its policy's way has been, in this life."""
        return [data for name, data in self.events if name == event]

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What is on its disk, of all its lives."""
        return [json.loads(line) for line in self.node.home.journal.read_text().splitlines()]

    def begin(self) -> None:
        self.task = asyncio.create_task(self.node.run())

    async def until(self, holds: Callable[[], T | None]) -> T:
        """The first answer that is something; a run that ends before tells why."""
        async with asyncio.timeout(DEADLINE):
            while not (found := holds()):
                if self.task and self.task.done() and not (found := holds()):
                    raise AssertionError(f"the node has ended: {self.task.result()}")
                await asyncio.sleep(0.01)
        return found

    async def trains(self) -> Life:
        await self.until(lambda: self.node.state == "training")
        return self

    async def rounds(self, more: int = 1) -> None:
        """So many rounds from now."""
        goal = self.round + more
        await self.until(lambda: self.round >= goal)

    async def rounds_per_second(self, more: int = 20) -> float:
        began, first = time.monotonic(), self.round
        await self.rounds(more)
        return (self.round - first) / (time.monotonic() - began)

    async def ends(self) -> str:
        assert self.task
        async with asyncio.timeout(DEADLINE):
            return await self.task

    async def stops(self) -> str:
        self.node.stop()
        return await self.ends()

    async def close(self) -> None:
        """Whatever the test left open. How the run ended is the test's business."""
        if self._closed:
            return
        self._closed = True
        if self.task:
            self.node.stop()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.node.close()


class Town:
    """Where nodes live. All that was started is closed in the end."""

    def __init__(self, path: Path, trainer: TrainerThread) -> None:
        self.path = path
        self.trainer = trainer
        self._stack = AsyncExitStack()

    async def listens(
        self, name: str, *, trainer: TrainerThread | None = None, lab: bool = False, **settings: Any
    ) -> Life:
        """A node whose port is open. Settings by section, over the quick ones."""
        wanted = Settings.model_validate({**QUICK, "name": name, **settings})
        life: Life | None = None

        def observe(event: str, data: Mapping[str, Any]) -> None:
            if life:
                life.events.append((event, data))

        life = Life(
            DaemonNode(
                wanted,
                DiskStore.open(self.path / name),
                trainer or self.trainer,
                observe,
                role_of=role_of if lab else None,
            )
        )
        self._stack.push_async_callback(life.close)
        await life.node.start()
        return life

    async def runs(self, name: str, **settings: Any) -> Life:
        """A node that is under way, though it need not have begun to train."""
        life = await self.listens(name, **settings)
        life.begin()
        return life

    async def close(self) -> None:
        await self._stack.aclose()
        await self.trainer.close()


@asynccontextmanager
async def town(path: Path, trainer: TrainerThread | None = None) -> AsyncIterator[Town]:
    made = Town(path, trainer or TrainerThread())
    try:
        yield made
    finally:
        await made.close()


def play(
    path: Path, scene: Callable[[Town], Awaitable[None]], trainer: Callable[[], TrainerThread] = TrainerThread
) -> None:
    """One scene in one event loop."""

    async def main() -> None:
        async with town(path, trainer()) as made:
            await scene(made)

    asyncio.run(main())
