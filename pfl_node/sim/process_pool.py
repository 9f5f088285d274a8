"""A pool of worker processes, each of which runs one order at a time. The order in which they finish does not
affect the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pfl_node.sim.worker_process import JsonOrder, Message, WorkerProcess

OnMessage = Callable[[int, Message], None]  # a message about the order of that number
SIMULATE = "pfl_node.sim.sim_worker"


def run_all(
    orders: Sequence[JsonOrder],
    workers: int,
    on_message: OnMessage,
    module: str = SIMULATE,
    *,
    reuse: bool = True,
    grace: float = 0.0,
) -> list[Message]:
    """Return the last message about each order, `done` or `failed`. Without `reuse` every order gets a new
    process. A process has `grace` seconds to shut down."""
    pool = Pool(deque(enumerate(orders)), on_message, module, reuse, grace)
    return asyncio.run(pool.run(min(workers, len(orders))))


@dataclass
class Pool:
    todo: deque[tuple[int, JsonOrder]]
    on_message: OnMessage
    module: str
    reuse: bool
    grace: float
    last: dict[int, Message] = field(default_factory=dict)

    async def run(self, workers: int) -> list[Message]:
        tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                if not task.cancelling():  # a second cancel would interrupt worker.close()
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [message for _, message in sorted(self.last.items())]

    async def _work(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while self.todo:
                number, order = self.todo.popleft()
                on_message = partial(self.on_message, number)
                try:
                    worker = worker or await WorkerProcess.spawn(self.module)
                except OSError as error:
                    self.last[number] = _failed(f"cannot start a process: {error.strerror or error}")
                else:
                    self.last[number] = await _run(worker, order, on_message)
                on_message(self.last[number])
                if worker and (worker.stopping or not self.reuse):
                    await worker.close(self.grace)
                    worker = None
        finally:
            if worker:
                await worker.close(self.grace)


async def _run(worker: WorkerProcess, order: JsonOrder, on_message: Callable[[Message], None]) -> Message:
    """Return the final message of the order."""
    worker.order(order.dump())
    while (message := await worker.receive()) is not None:
        if message["event"] != "progress":
            return message
        on_message(message)
    worker.stop()
    return _failed(f"its process {await worker.ending()}")


def _failed(why: str) -> Message:
    return {"event": "failed", "why": why, "mistake": False}
