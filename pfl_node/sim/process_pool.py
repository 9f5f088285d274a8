"""A pool of worker processes, each of which runs one order at a time. The order in which they finish does not
affect the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pfl_node.sim.worker_process import Message, WorkerProcess

OnMessage = Callable[[int, Message], None]  # a message about the order of that number
SIMULATE = "pfl_node.sim.sim_worker"


class Order(Protocol):
    def dump(self) -> str: ...  # one line, parsed by the worker's module


def run_all(
    orders: Sequence[Order],
    workers: int,
    on_message: OnMessage,
    module: str = SIMULATE,
    *,
    reuse: bool = True,
    grace: float = 0.0,
) -> list[Message]:
    """Return the last message about each order, `done` or `failed`. Without `reuse` every order gets a new
    process. A process has `grace` seconds to shut down."""
    pool = Pool(orders, on_message, module, reuse=reuse, grace=grace)
    return asyncio.run(pool.run(min(workers, len(orders))))


class Pool:
    def __init__(
        self, orders: Sequence[Order], on_message: OnMessage, module: str, *, reuse: bool, grace: float
    ) -> None:
        self._todo = deque(enumerate(orders))
        self._last: dict[int, Message] = {}
        self._on_message = on_message
        self._module = module
        self._reuse = reuse
        self._grace = grace

    async def run(self, workers: int) -> list[Message]:
        tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                if not task.cancelling():  # a second cancel would interrupt worker.close()
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [message for _, message in sorted(self._last.items())]

    async def _work(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while self._todo:
                number, order = self._todo.popleft()
                on_message = partial(self._on_message, number)
                try:
                    worker = worker or await WorkerProcess.spawn(self._module)
                except OSError as error:
                    self._last[number] = _failed(f"cannot start a process: {error.strerror or error}")
                else:
                    self._last[number] = await _run(worker, order, on_message)
                on_message(self._last[number])
                if worker and (worker.stopping or not self._reuse):
                    await worker.close(self._grace)
                    worker = None
        finally:
            if worker:
                await worker.close(self._grace)


async def _run(worker: WorkerProcess, order: Order, on_message: Callable[[Message], None]) -> Message:
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
