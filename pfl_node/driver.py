"""Runs a policy inside the daemon: answers its steps with gRPC, the real clock and the trainer thread.

Knows how an answer comes about; knows no algorithm and no lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pfl_node.bell import Bell
from pfl_node.errors import ConfigError, PeerError, Reason, Refused
from pfl_node.fault import users_fault
from pfl_node.mailbox import Mailbox
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.steps import (
    Ask,
    Average,
    Fetch,
    Flow,
    Fresh,
    Gather,
    Peers,
    Receive,
    Record,
    Report,
    Score,
    Send,
    Sleep,
    Step,
    Train,
)
from pfl_node.study import Study
from pfl_node.types import Eval, Offer, PeerId
from pfl_node.work import Work

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.trainer import Trainer
    from pfl_node.wire.client import PeerClient

T = TypeVar("T")
Call = Callable[[PeerId, str], Awaitable[T]]  # of a peer at an address


class Diary(Protocol):
    """Who listens to what the policy tells."""

    def record(self, step: Record) -> None: ...
    async def report(self, step: Report) -> None: ...
    def failed(self, call: str, error: PeerError) -> None: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What a driver works with."""

    settings: Settings
    learner: Learner
    trainer: Trainer
    client: PeerClient
    mailbox: Mailbox
    bell: Bell  # rings when a model came or the company changed
    company: Callable[[], Mapping[PeerId, str]]  # who is alive, and where
    finished: Callable[[], Iterable[PeerId]]  # who did its last round and left
    diary: Diary
    work: Work


class Driver:
    """One policy, one node."""

    def __init__(self, policy: Policy, desk: Desk) -> None:
        self.policy = policy
        self.desk = desk
        self.waiting_for: tuple[PeerId, ...] = ()
        self._study = Study(policy, desk)
        self._sends: set[asyncio.Task[bool]] = set()
        self._slots = asyncio.Semaphore(desk.settings.wire.concurrency)

    async def run(self) -> None:
        """Until `main` returns. A policy that fails takes the node with it."""
        flows = [asyncio.create_task(self._drive(self.policy.main()), name="main")]
        if self.policy.pushes():
            flows.append(asyncio.create_task(self._lane(), name="lane"))
        try:
            done, _ = await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
            for flow in done:
                flow.result()
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
            await self._finish_sends()

    async def _drive(self, flow: Flow) -> None:
        answer: Any = None
        try:
            while (step := self._next(flow, answer)) is not None:
                answer = await self._answer(step)
        finally:
            flow.close()

    def _next(self, flow: Flow, answer: Any) -> Step[Any] | None:
        """What the policy asks next; None: it has returned. A failure of a user's own policy is one line."""
        try:
            step: Any = flow.send(answer)
            while not isinstance(step, Step):
                step = flow.throw(TypeError(f"a policy awaits steps only, not {step!r}"))
            return step
        except StopIteration:
            return None
        except Exception as error:
            if fault := users_fault("policy", self.desk.settings.policy.name, error, ConfigError):
                raise fault from error
            raise

    async def _lane(self) -> None:
        """The handlers, one after the other: every model of the inbox, and the silence between them."""
        box, bell = self.desk.mailbox, self.desk.bell
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            if offers := box.take(1):
                await self._drive(self.policy.on_model(offers[0]))
                heard = loop.time()
                continue
            patience = self.policy.quiet_after
            left = None if patience is None else heard + patience - loop.time()
            if left is not None and left <= 0:
                await self._drive(self.policy.on_quiet())
                heard = loop.time()
                continue
            await bell.wait(left)

    async def _answer(self, step: Step[Any]) -> Any:
        match step:
            case Sleep():
                return await self._sleep(step)
            case Peers():
                return self._peers()
            case Send():
                return await self._send(step)
            case Gather():
                return await self._gather(step)
            case Receive():
                return await self._receive(step)
            case Fetch():
                return await self._fetch(step)
            case Ask():
                return await self._ask(step)
            case Fresh():
                return await self._study.fresh(step)
            case Train():
                return await self._study.train(step)
            case Score():
                return await self._study.score(step)
            case Average():
                return await self._study.average(step)
            case Record():
                return self.desk.diary.record(step)
            case Report():
                return await self.desk.diary.report(step)
        raise TypeError(f"a policy asked for {step!r}, which this driver does not know")

    # -- time ----------------------------------------------------------------------------------------------

    async def _sleep(self, step: Sleep) -> float:
        await asyncio.sleep(step.seconds)
        return asyncio.get_running_loop().time()

    def _peers(self) -> tuple[PeerId, ...]:
        finished = self.desk.finished() if self.policy.lockstep else ()
        return tuple(sorted({*self.desk.company(), *finished}))

    # -- messages ------------------------------------------------------------------------------------------

    async def _send(self, step: Send) -> tuple[PeerId, ...]:
        """All at once, as many at a time as the settings allow. A stop lets the messages in hand finish."""
        sends = {p: asyncio.create_task(self._send_one(p, step)) for p in dict.fromkeys(step.to)}
        self._sends.update(sends.values())
        for task in sends.values():
            task.add_done_callback(self._sends.discard)
        if sends:
            await asyncio.wait(sends.values())
        return tuple(p for p, task in sends.items() if task.result())

    async def _send_one(self, peer: PeerId, step: Send) -> bool:
        samples = self.desk.learner.samples

        def go(peer: PeerId, address: str) -> Awaitable[int]:
            return self.desk.client.send(
                peer, address, step.model, round=step.round, tag=step.tag, samples=samples, notes=step.notes
            )

        async with self._slots:
            return await self._reach("SendModel", peer, go) is not None

    async def _each(self, call: str, peers: Sequence[PeerId], go: Call[T]) -> dict[PeerId, T]:
        """Call these peers at once; those that are gone or refuse are missing."""
        once = list(dict.fromkeys(peers))
        answers = await asyncio.gather(*(self._reach(call, p, go) for p in once))
        return {p: a for p, a in zip(once, answers, strict=True) if a is not None}

    async def _reach(self, call: str, peer: PeerId, go: Call[T]) -> T | None:
        """Call a peer; None when it is gone or refuses, which is told to the diary."""
        address = self.desk.company().get(peer)
        if address is None:
            return None
        try:
            return await go(peer, address)
        except PeerError as error:
            if isinstance(error, Refused) and error.reason is Reason.STALE_ROUND:
                self.desk.mailbox.overtaken(peer)
            self.desk.diary.failed(call, error)
            return None

    async def _gather(self, step: Gather) -> tuple[Offer, ...]:
        loop, box, company = asyncio.get_running_loop(), self.desk.mailbox, self.desk.company
        box.advance(step.round)
        end = loop.time() + self._patience(step)
        while missing := [p for p in box.missing(step.peers, step.round) if p in company()]:
            self.waiting_for = tuple(missing)
            if not await self.desk.bell.wait(max(0.0, end - loop.time())):
                break
        self.waiting_for = ()
        return box.collect(step.peers, step.round)

    async def _receive(self, step: Receive) -> tuple[Offer, ...]:
        loop, box = asyncio.get_running_loop(), self.desk.mailbox
        end = loop.time() + self._patience(step)
        while len(box) < step.n and await self.desk.bell.wait(max(0.0, end - loop.time())):
            pass
        return box.take(step.n)

    def _patience(self, step: Gather | Receive) -> float:
        return self.desk.settings.round.patience if step.patience is None else step.patience

    async def _fetch(self, step: Fetch) -> tuple[Offer, ...]:
        client, layout = self.desk.client, self.desk.learner.layout.of(step.part)
        found = await self._each("Fetch", step.peers, lambda p, a: client.fetch(p, a, step.part, layout))
        return tuple(found.values())

    async def _ask(self, step: Ask) -> dict[PeerId, Eval]:
        client = self.desk.client
        return await self._each("EvaluateModel", step.peers, lambda p, a: client.evaluate(p, a, step.model))

    async def _finish_sends(self) -> None:
        if self._sends:
            await asyncio.wait(self._sends, timeout=5.0)
        for task in self._sends:
            task.cancel()
