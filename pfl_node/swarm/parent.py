"""Runs a swarm from above: a seed member in this process, worker processes for the nodes. Never imports torch."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError
from pfl_node.membership.member import Member
from pfl_node.membership.service import Membership
from pfl_node.settings import Settings
from pfl_node.swarm.spec import WorkerSpec, split
from pfl_node.wire.endpoint import Endpoint

Said = dict[str, Any]
LINE_LIMIT = 1 << 22  # bytes of one event; a thousand peers' counters fit


@dataclass
class Seat:
    """What is known of one node from outside."""

    index: int
    node: str = ""  # its id
    cluster: int | None = None  # the truth, where the task knows it
    round: int = 0
    said: Said = field(default_factory=dict)  # its last "round" event
    records: list[Said] = field(default_factory=list)  # its other events
    result: Said | None = None


class Swarm:
    """N nodes in W processes, all traffic between them real gRPC."""

    def __init__(self, settings: Settings, *, nodes: int, workers: int | None, out: Path) -> None:
        self.settings = settings
        self.nodes = nodes
        self.workers = workers or os.cpu_count() or 1
        self.out = out
        self.seats = [Seat(i) for i in range(nodes)]
        self.seed_address = ""
        self.pids: list[int] = []
        self.cpu = 0.0  # seconds of all workers, after their imports
        self.on_event: Callable[[Said], None] = lambda _: None
        self._running: list[asyncio.subprocess.Process] = []

    async def run(self) -> None:
        """Until every node is done. Raises PflError when a worker fails."""
        # The processes come first: gRPC and fork do not go together.
        shares = split(self.nodes, self.workers)
        workers = [await self._spawn() for _ in shares]
        endpoint, membership = await self._seed()
        try:
            async with asyncio.TaskGroup() as group:
                for worker, indices in zip(workers, shares, strict=True):
                    group.create_task(self._listen(worker, indices))
        except* PflError as errors:
            raise errors.exceptions[0] from None
        finally:
            await membership.close()
            await endpoint.stop()

    def stop(self) -> None:
        """Ask every node to leave in order."""
        for process in self._running:
            if process.stdin and not process.stdin.is_closing():
                process.stdin.write(b"stop\n")

    @property
    def done(self) -> int:
        return sum(1 for seat in self.seats if seat.result)

    async def _seed(self) -> tuple[Endpoint, Membership]:
        endpoint = Endpoint()
        me = Member(
            id=secrets.token_hex(8),
            name="seed",
            address="",
            role="bootstrap",
            run=self.settings.run,
            incarnation=1,
        )
        membership = Membership(me, self.settings.membership, rng=random.Random(self.settings.seed))
        membership.attach(endpoint)
        await endpoint.bind("127.0.0.1:0", membership.bind)
        await endpoint.start()
        await endpoint.serving(True)
        await membership.start((), advertise=endpoint.address)
        self.seed_address = endpoint.address
        return endpoint, membership

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pfl_node.swarm.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,  # Ctrl-C reaches the nodes through us, in order
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._running.append(process)
        self.pids.append(process.pid)
        return process

    async def _listen(self, process: asyncio.subprocess.Process, indices: tuple[int, ...]) -> None:
        """Tell the worker its share and hear it out."""
        assert process.stdin is not None
        assert process.stdout is not None
        spec = WorkerSpec(self.settings, self.nodes, indices, self.seed_address, self.out)
        try:
            process.stdin.write(spec.dump().encode() + b"\n")
            async for line in process.stdout:
                self._hear(json.loads(line))
            if code := await process.wait():
                raise PflError(f"a worker process of the swarm ended with code {code}")
        finally:
            self._running.remove(process)
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _hear(self, said: Said) -> None:
        match said["event"]:
            case "failed":
                raise PflError(said["error"])
            case "imported":
                self.cpu -= said["cpu"]
            case "worked":
                self.cpu += said["cpu"]
            case "round":
                seat = self.seats[said["index"]]
                seat.round, seat.said = said["round"] + 1, said
            case "started":
                seat = self.seats[said["index"]]
                seat.node, seat.cluster = said["node"], said["cluster"]
            case "result":
                self.seats[said["index"]].result = said
            case _:
                self.seats[said["index"]].records.append(said)
        self.on_event(said)
