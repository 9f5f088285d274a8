"""A real daemon that trains with real peers, each a process, while it is fired at; and how it bore it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import psutil

from tests.e2e.processes import Process
from tests.fuzz.address_filter import AddressFilter
from tests.fuzz.batch import Batch, Watcher, cases_of
from tests.fuzz.cases import Case, CaseGenerator
from tests.fuzz.findings import Findings
from tests.fuzz.recording_member import recorded
from tests.fuzz.sender import LONG, Sender
from tests.fuzz.surface import surface_of

RUN = "fuzz"
DEFAULT = "gossip"
QUICK = ("task.samples=40", "round.patience=1", "start.wait=60", "store.checkpoint_every=20")
POLICIES = {"gossip": ("policy.n_peers=4", "policy.delta=0.5", "policy.quiet=2")}  # little training, many messages
COMPRESSED = (
    "top:0.3",
    "fragments:16/4",
)  # of the peers, so that partial models are recorded; the target's are full
MB = 1 << 20
GROWTH = 20.0  # MB that may be
Start = Callable[..., Process]
Status = dict[str, Any]
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int = 0
    messages: int = 100_000
    warm: int = 20_000  # messages before memory is measured: tables of bounded size fill
    peers: int = 2
    policy: str = DEFAULT
    only: int | None = None
    case: Case | None = None

    @property
    def options(self) -> str:
        return f" --policy {self.policy}" if self.policy != DEFAULT else ""


class TargetSwarm:
    """Starts the swarm, records it, fires, and looks at it afterwards."""

    def __init__(self, plan: Plan, start: Start, say: Say) -> None:
        self.plan = plan
        self.findings = Findings(plan.seed, plan.options, say=say)
        self._start = start
        self._say = say
        self.node = self._daemon("target")
        self.address = address_of(self.node)
        self.peers = [
            self._daemon(f"peer-{n}", "--peer-seed", self.address, "--set", f"wire.compress={COMPRESSED[n % 2]}")
            for n in range(plan.peers)
        ]

    def _daemon(self, name: str, *words: str) -> Process:
        settings = [*QUICK, *POLICIES.get(self.plan.policy, ())]
        sets = [w for setting in settings for w in ("--set", setting)]
        common = f"--run {RUN} --policy {self.plan.policy} --name {name} --data-dir {name} --log-format json"
        return self._start("pfl_node", "--listen", "127.0.0.1:0", *common.split(), *words, *sets)

    async def run(self) -> None:
        watcher = Watcher(self.address)
        try:
            begun = await watcher.until(lambda s: s["round"] >= 2 and len(s["models_received"]) >= self.plan.peers)
            generator = await self._prepare(begun["round"])
            async with Sender(self.address) as sender:
                batch = Batch(sender, self.findings, partial(_up_to_date, watcher, generator))
                await self._send(batch, generator, watcher)
            await self._look_after(watcher)
        except (TimeoutError, AssertionError, grpc.aio.AioRpcError) as error:
            self.findings.wrong(f"the swarm did not get on: {error!r}")
        finally:
            await watcher.close()
        self._end()

    async def _prepare(self, round: int) -> CaseGenerator:
        surface = await asyncio.to_thread(surface_of, self.address)
        corpus = await recorded(self.address, surface, RUN, round)
        everybody = [self.address, *(address_of(peer) for peer in self.peers)]
        return CaseGenerator(self.plan.seed, corpus, AddressFilter(everybody), self.address)

    async def _send(self, batch: Batch, generator: CaseGenerator, watcher: Watcher) -> None:
        plan, before = self.plan, await watcher.status()
        if plan.case or plan.only is not None:
            one = plan.case or generator.case(plan.only or 0)
            await batch.send_all([one] * plan.messages if plan.messages > 1 else [one])
            return
        warm = min(plan.warm, plan.messages // 2)
        sizes = [self.memory]
        await batch.send_all(cases_of(generator, range(warm)))
        sizes.append(self.memory)
        for begin in range(warm, plan.messages, 10_000):
            await batch.send_all(cases_of(generator, range(begin, min(begin + 10_000, plan.messages))))
            done, round = self.findings.messages, generator.corpus.round
            self._say(
                f"{done:,} messages, {self.memory:.1f} MB, round {round}, {len(self.findings.different)} findings"
            )
        after = await self._quiet(watcher)
        self._weigh(warm, sizes[0], sizes[1], self.memory)
        self._compare(before, after)

    def _weigh(self, warm: int, first: float, warmed: float, last: float) -> None:
        sizes = f"{first:.1f} MB before, {warmed:.1f} MB after {warm:,} messages, {last:.1f} MB at the end"
        self._say(f"memory: {sizes}: {last - warmed:+.1f} MB since then")
        if last - warmed > GROWTH:
            self.findings.wrong(f"memory grew by {last - warmed:.1f} MB; {GROWTH:g} MB may be")

    def _compare(self, before: Status, after: Status) -> None:
        read = [sum(s["membership"].get(word, 0) for word in ("packets_in", "garbage")) for s in (before, after)]
        self._say(f"rounds: {before['round']} before, {after['round']} after; refused: {after['refused']}")
        self._say(f"packets and bad calls that the membership read: {read[1] - read[0]:,}")
        if after["round"] <= before["round"]:
            self.findings.wrong("no round was made meanwhile")

    async def _quiet(self, watcher: Watcher) -> Status:
        """Two rounds later, when all that came is done with."""
        here = await watcher.status()
        return await watcher.until(lambda s: s["round"] >= here["round"] + 2)

    async def _look_after(self, watcher: Watcher) -> None:
        """One who comes now can learn with it."""
        me = (await watcher.status())["id"]
        newcomer = self._daemon("newcomer", "--peer-seed", self.address)
        self.peers.append(newcomer)
        theirs = Watcher(address_of(newcomer))
        try:
            who = (await theirs.status())["id"]
            await watcher.until(lambda s: s["models_received"].get(who, 0) > 0)
            await theirs.until(lambda s: s["models_received"].get(me, 0) > 0)
            self._say("a node that joined afterwards has exchanged models with it")
        finally:
            await theirs.close()

    def _end(self) -> None:
        for process, name in ((self.node, "the daemon"), *((p, "a peer") for p in self.peers)):
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGTERM)
            code = process.popen.wait(LONG)
            if code != 0:
                self.findings.wrong(f"{name} ended with exit code {code}")
            for line in complaints(process.output.splitlines()):
                self.findings.wrong(f"the log of {name} has: {line}")
        self._say(f"the daemon ended with exit code {self.node.popen.poll()}")

    @property
    def memory(self) -> float:
        return float(psutil.Process(self.node.popen.pid).memory_info().rss) / MB


async def _up_to_date(watcher: Watcher, generator: CaseGenerator) -> None:
    generator.corpus.round = (await watcher.status())["round"]


def complaints(log: Iterable[str]) -> list[str]:
    """Lines that an operator should never see because of what others send."""
    found = []
    for line in log:
        try:
            row = json.loads(line)
        except ValueError:
            row = {"event": line, "level": "error" if "Traceback" in line else ""}
        if row.get("level") in ("error", "critical") or "exception" in row or "Traceback" in str(row.get("event")):
            found.append(line[:2000])
    return found


def address_of(process: Process) -> str:
    """As soon as it says so, which may take minutes on a very busy machine."""
    while process.popen.poll() is None and "--peer-seed" not in process.output:
        time.sleep(0.1)
    return process.says("--peer-seed").split("--peer-seed ")[1].split()[0]
