"""The parent process of a swarm: a seed member here, worker processes for the nodes. Never imports torch."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pfl_node.errors import PflError
from pfl_node.membership.member import Member
from pfl_node.settings import Settings
from pfl_node.sim.worker_process import Message, WorkerProcess, cores
from pfl_node.swarm.messages import TraceSpec, WorkerSpec, node_name, split
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership

GRACE = 8.0  # seconds that the nodes have to shut down


@dataclass
class NodeSlot:
    """What the parent process knows of one node."""

    index: int
    node: str = ""  # its id
    cluster: int | None = None  # the true one, if the task has clusters
    round: int = 0
    last_round: Message = field(default_factory=dict)  # its last "round" event
    records: dict[str, Message] = field(default_factory=dict)  # the last of each other event
    result: Message | None = None


class Swarm:
    def __init__(
        self, settings: Settings, *, nodes: int, workers: int | None, out: Path, trace: TraceSpec | None = None
    ) -> None:
        self.settings = settings
        self.nodes = nodes
        self.shares = split(nodes, workers or cores())
        self.out = out
        self.trace = trace
        self.slots = [NodeSlot(i) for i in range(nodes)]
        self.pids: list[int] = []
        self.imported = 0  # workers that have imported torch
        self.cpu = 0.0  # seconds of all workers, without their imports
        self.ready = asyncio.Event()  # every node has started
        self.stopping = False
        self.on_event: Callable[[Message], None] = lambda _: None
        self.on_saved: Callable[[Message], None] = lambda _: None  # a traced node has saved its state
        self._workers: list[WorkerProcess] = []

    async def run(self) -> None:
        """Until every node has finished, or left after `stop`. Raises PflError when a worker fails."""
        try:
            # Before gRPC starts: it does not survive a fork.
            for share in self.shares:
                self._workers.append(await self._spawn(share))
            async with self._seed() as seed, asyncio.TaskGroup() as group:
                for worker, share in zip(self._workers, self.shares, strict=True):
                    group.create_task(self._follow(worker, share, seed))
        except* PflError as errors:
            raise errors.exceptions[0] from None
        finally:
            await asyncio.gather(*(worker.close() for worker in self._workers))

    def stop(self) -> None:
        """Ask every node to shut down; kill the workers that have not done so in time."""
        if not self.stopping:
            self.stopping = True
            for worker in self._workers:
                # A worker that is still importing has nothing to save.
                (worker.stop if worker.responded else worker.kill)()
            asyncio.get_running_loop().call_later(GRACE, self.kill)
            self.on_event({"event": "stopping"})

    def kill(self) -> None:
        self.stopping = True
        for worker in self._workers:
            worker.kill()

    @property
    def started(self) -> int:
        return sum(1 for slot in self.slots if slot.node)

    @property
    def done(self) -> int:
        return sum(1 for slot in self.slots if slot.result is not None)

    @property
    def rounds_done(self) -> int:
        """Of all nodes together, without a final exchange after the last round."""
        most = self.settings.rounds
        return sum(s.round if most is None else min(s.round, most) for s in self.slots)

    @property
    def rounds_total(self) -> int | None:
        return self.settings.rounds and self.settings.rounds * self.nodes

    async def _spawn(self, share: tuple[int, ...]) -> WorkerProcess:
        worker = await WorkerProcess.spawn("pfl_node.swarm.swarm_worker", f"the worker of {_named(share)}")
        self.pids.append(worker.pid)
        return worker

    @asynccontextmanager
    async def _seed(self) -> AsyncIterator[str]:
        """A member without a model, through which the nodes join. Yields its address."""
        endpoint = Endpoint()
        me = Member(
            id=secrets.token_hex(8),
            name="seed",
            address="",
            role="bootstrap",
            run=self.settings.run,
            incarnation=1,
        )
        rng = random.Random(self.settings.seed)
        membership = attach_membership(endpoint, me, self.settings.membership, rng=rng)
        await endpoint.bind("127.0.0.1:0", membership.bind)
        await endpoint.start()
        try:
            await endpoint.serving(True)
            await membership.start((), advertise=endpoint.address)
            yield endpoint.address
        finally:
            await membership.close()
            await endpoint.stop(grace=0)

    async def _follow(self, worker: WorkerProcess, share: tuple[int, ...], seed: str) -> None:
        if self.stopping:
            worker.kill()
        worker.order(WorkerSpec(self.settings, self.nodes, share, seed, self.out, self.trace).dump())
        async for message in worker.messages():
            self.on_event(self._receive(message))

    def _receive(self, message: Message) -> Message:
        """Update the slots. Returns the message, and of a node's journal row the row itself."""
        match message["event"]:
            case "imported":
                self.imported += 1
            case "worked":
                self.cpu += message["cpu"]
            case "saved":
                self.on_saved(message)
            case "result":
                self.slots[message["index"]].result = message
            case "node":
                index, event, data = message["index"], message["what"], message["data"]
                self._journal_row(self.slots[index], event, data)
                return {**data, "event": event, "index": index}
        return message

    def _journal_row(self, slot: NodeSlot, event: str, data: Message) -> None:
        """A policy may record under any name, so the shape of the data is checked too."""
        match event, data:
            case "round", {"round": int(number)}:
                slot.round, slot.last_round = number + 1, data
            case "started", {"node": str(id), "cluster": cluster}:
                slot.node, slot.cluster = id, cluster
                if self.started == self.nodes:
                    self.ready.set()
            case _:
                slot.records[event] = data


def _named(share: tuple[int, ...]) -> str:
    first, *rest = share
    return node_name(first) + (f" and {len(rest)} more" if rest else "")
