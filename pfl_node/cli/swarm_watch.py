"""The verb `watch`: a line about a swarm every few seconds, its page, and a table when its rounds are done."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.address import parse_address
from pfl_node.cli.options import Address
from pfl_node.cli.output import say
from pfl_node.cli.remote import Remote, connected
from pfl_node.errors import PeerError

if TYPE_CHECKING:
    from pfl_node.swarm.baseline import Baseline, LocalRun
    from pfl_node.swarm.watched_swarm import WatchedSwarm

Every = Annotated[float, typer.Option(min=0.5, metavar="SECONDS", help="Time between two lines.")]
Journals = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Read the last figures from the journals below this directory.")
]
Forward = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Forward connections to the page of a node that is present."),
]
Compare = Annotated[
    bool, typer.Option("--compare/--no-compare", help="Train the same nodes alone, at low priority.")
]

AT_ONCE = 8  # concurrent status calls
PATIENCE = 4.0  # seconds for an answer
SETTLED = 2  # consecutive polls without a present node, after which the run is over
CHUNK = 1 << 16


def watch(
    address: Address,
    every: Every = 10.0,
    journals: Journals = None,
    page: Forward = None,
    compare: Compare = True,
) -> None:
    """Print a line about the whole swarm every few seconds, and a table when its rounds are done.

    The settings of the run (policy, task, rounds) come from the environment, as those of its nodes.
    """
    from pfl_node.policies import knobs_of
    from pfl_node.settings.load import load_settings
    from pfl_node.swarm.demo import kinds
    from pfl_node.swarm.watched_swarm import WatchedSwarm

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = load_settings(environ=os.environ, knobs=knobs_of)
    swarm = WatchedSwarm(settings, kinds(settings))
    asyncio.run(SwarmWatch(swarm, address, every=every, journals=journals).run(page=page, compare=compare))


class SwarmWatch:
    def __init__(self, swarm: "WatchedSwarm", address: str, *, every: float, journals: Path | None) -> None:
        self.swarm = swarm
        self._address = address
        self._every = every
        self._journals = journals
        self._began = time.monotonic()
        self._said = ""
        self._open = ExitStack()
        self._remotes: dict[str, Remote] = {}
        self._addresses: dict[str, str] = {}  # addresses of the present nodes
        self._pool = ThreadPoolExecutor(AT_ONCE)

    async def run(self, *, page: str | None, compare: bool) -> None:
        from pfl_node.swarm.baseline import Baseline

        baseline = Baseline(self.swarm.settings, 0) if compare else None
        with self._open:
            try:
                if baseline:
                    os.nice(10)
                    await baseline.spawn()  # before gRPC starts its threads
                if page:
                    await self._forward(page)
                await self._watch(baseline)
                self._finish(baseline.alone if baseline else None)
            finally:
                self._pool.shutdown(cancel_futures=True)
                if baseline:
                    await baseline.close()

    async def _watch(self, baseline: "Baseline | None") -> None:
        """Watch until the run is over and compared."""
        comparing: asyncio.Task[None] | None = None
        silent = 0
        while silent < SETTLED:
            await asyncio.to_thread(self._look)
            silent = silent + 1 if self.swarm.over else 0
            if baseline and comparing is None and self.swarm.begun:
                baseline.nodes = len(self.swarm.present)
                baseline.settings = alone(baseline.settings, self.swarm)
                comparing = asyncio.create_task(baseline.run())
            self._print(baseline.alone if baseline else None)
            await asyncio.sleep(self._every)
        if comparing:
            await comparing

    def _look(self) -> None:
        """Ask one member for the list, and every node that is present for its status."""
        swarm = self.swarm
        try:
            _, rows = self._remote(self._address).members()
        except PeerError as error:
            self._say(f"{self._address} does not answer yet: {error.text}")
            return
        swarm.members(rows)
        present = {node.id for node in swarm.present}
        self._addresses = {row["id"]: row["address"] for row in rows if row["id"] in present}
        list(self._pool.map(self._ask, self._addresses.items()))
        if swarm.over and self._journals:
            from pfl_node.swarm.watched_swarm import last_figures

            swarm.ended(last_figures(self._journals))

    def _ask(self, who: tuple[str, str]) -> None:
        try:
            self.swarm.status(who[0], self._remote(who[1]).status())
        except PeerError:
            return  # keep its last status

    def _remote(self, address: str) -> Remote:
        if address not in self._remotes:
            self._remotes[address] = self._open.enter_context(connected(address, PATIENCE))
        return self._remotes[address]

    def _print(self, alone: "LocalRun | None") -> None:
        if self.swarm.nodes:
            self._say(self.swarm.line(alone))

    def _say(self, line: str) -> None:
        """Print a line, unless it repeats the last one."""
        if line != self._said:
            self._said = line
            say(f"{time.strftime('%H:%M:%S')} {line}")

    def _finish(self, alone: "LocalRun | None") -> None:
        from pfl_node.swarm.format import terminal
        from pfl_node.swarm.swarm_report import SwarmReport

        outcome = self.swarm.outcome(time.monotonic() - self._began)
        print()
        SwarmReport(outcome, alone, self.swarm.kinds).show(terminal())

    # -- the page --------------------------------------------------------------------------------------------

    async def _forward(self, page: str) -> None:
        """Forward connections on this port to the page of any present node."""
        host, port = parse_address(page, what="page")
        _, theirs = parse_address(self.swarm.settings.http.listen or page, what="http", any_port=True)
        await asyncio.start_server(lambda visitor, out: self._visit(visitor, out, theirs), host, port)
        say(f"the page of the swarm, once a node has joined: http://127.0.0.1:{port}/")

    async def _visit(self, visitor: asyncio.StreamReader, out: asyncio.StreamWriter, port: int) -> None:
        for address in list(self._addresses.values()):
            try:
                found = await asyncio.open_connection(parse_address(address)[0], port)
            except OSError:
                continue
            await asyncio.gather(_copy(visitor, found[1]), _copy(found[0], out), return_exceptions=True)
            return
        out.write(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\nno node is there yet\n")
        out.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


def alone(settings: Any, swarm: "WatchedSwarm") -> Any:
    """The settings of the comparison: with the nodes' number of samples, if the task has an option for it."""
    task = settings.task.model_copy(update={"index": None})
    samples = [node.status.get("samples") for node in swarm.present if node.status.get("samples")]
    if task.name == "digits" and samples and "samples" not in task.options:
        task = type(task)(**{**task.model_dump(), "samples": samples[0]})
    return settings.model_copy(update={"task": task})
