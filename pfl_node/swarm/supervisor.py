"""Runs a swarm from above: a seed member in this process, worker processes for the nodes. Never imports torch."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pfl_node.errors import PflError
from pfl_node.membership.member import Member
from pfl_node.settings import Settings
from pfl_node.swarm.messages import TraceSpec, WorkerSpec, node_name, split
from pfl_node.swarm.process_pipes import ChildPipe, Said
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership

GRACE = 8.0  # seconds that the nodes have to leave in order


@dataclass
class NodeSlot:
    """What is known of one node from outside."""

    index: int
    node: str = ""  # its id
    cluster: int | None = None  # the truth, where the task knows it
    round: int = 0
    said: Said = field(default_factory=dict)  # its last "round" event
    records: dict[str, Said] = field(default_factory=dict)  # the last of each of its other events
    result: Said | None = None


class Swarm:
    """N nodes in W processes, all traffic between them real gRPC."""

    def __init__(
        self, settings: Settings, *, nodes: int, workers: int | None, out: Path, trace: TraceSpec | None = None
    ) -> None:
        self.settings = settings
        self.nodes = nodes
        self.shares = split(nodes, workers or _cores())
        self.out = out
        self.trace = trace
        self.seats = [NodeSlot(i) for i in range(nodes)]
        self.pids: list[int] = []
        self.imported = 0  # workers that have torch
        self.cpu = 0.0  # seconds of all workers, after their imports
        self.ready = asyncio.Event()  # every node has started
        self.stopping = False
        self.on_event: Callable[[Said], None] = lambda _: None
        self.on_kept: Callable[[Said], None] = lambda _: None  # a node of a traced swarm has kept its state
        self._workers: list[ChildPipe] = []

    async def run(self) -> None:
        """Until every node is done, or has left after `stop`. Raises PflError when a worker fails."""
        try:
            # The processes come first: gRPC and fork do not go together.
            for share in self.shares:
                self._workers.append(await self._spawn(share))
            async with self._seed() as seed, asyncio.TaskGroup() as group:
                for worker, share in zip(self._workers, self.shares, strict=True):
                    group.create_task(self._hear_out(worker, share, seed))
        except* PflError as errors:
            raise errors.exceptions[0] from None
        finally:
            await asyncio.gather(*(worker.close() for worker in self._workers))

    def stop(self) -> None:
        """Ask every node to leave in order; who has not done so after a while is ended."""
        if not self.stopping:
            self.stopping = True
            for worker in self._workers:
                # One that is still importing has nothing to lose.
                (worker.stop if worker.heard else worker.kill)()
            asyncio.get_running_loop().call_later(GRACE, self.kill)
            self.on_event({"event": "stopping"})

    def kill(self) -> None:
        """End them all at once."""
        self.stopping = True
        for worker in self._workers:
            worker.kill()

    @property
    def started(self) -> int:
        return sum(1 for seat in self.seats if seat.node)

    @property
    def done(self) -> int:
        return sum(1 for seat in self.seats if seat.result is not None)

    @property
    def rounds_done(self) -> int:
        """Of all nodes together; a final exchange after the last round is not one of them."""
        most = self.settings.rounds
        return sum(s.round if most is None else min(s.round, most) for s in self.seats)

    @property
    def rounds_total(self) -> int | None:
        return self.settings.rounds and self.settings.rounds * self.nodes

    async def _spawn(self, share: tuple[int, ...]) -> ChildPipe:
        worker = await ChildPipe.spawn("pfl_node.swarm.swarm_worker", f"the worker of {_named(share)}")
        self.pids.append(worker.pid)
        return worker

    @asynccontextmanager
    async def _seed(self) -> AsyncIterator[str]:
        """A member that only introduces the nodes to each other; its address."""
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

    async def _hear_out(self, worker: ChildPipe, share: tuple[int, ...], seed: str) -> None:
        if self.stopping:
            worker.kill()
        worker.order(WorkerSpec(self.settings, self.nodes, share, seed, self.out, self.trace).dump())
        async for said in worker.events():
            self.on_event(self._hear(said))

    def _hear(self, said: Said) -> Said:
        """Keeps what is of use; what a node's own journal says is taken out of its envelope."""
        match said["event"]:
            case "imported":
                self.imported += 1
            case "worked":
                self.cpu += said["cpu"]
            case "kept":
                self.on_kept(said)
            case "result":
                self.seats[said["index"]].result = said
            case "node":
                self._hear_node(self.seats[said["index"]], said["what"], said["data"])
                return {**said["data"], "event": said["what"], "index": said["index"]}
        return said

    def _hear_node(self, seat: NodeSlot, event: str, data: Said) -> None:
        """A policy may record under any name, also under one of ours."""
        match event, data:
            case "round", {"round": int(number)}:
                seat.round, seat.said = number + 1, data
            case "started", {"node": str(id), "cluster": cluster}:
                seat.node, seat.cluster = id, cluster
                if self.started == self.nodes:
                    self.ready.set()
            case _:
                seat.records[event] = data


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _named(share: tuple[int, ...]) -> str:
    first, *rest = share
    return node_name(first) + (f" and {len(rest)} more" if rest else "")
