"""Runs a policy inside the daemon: answers its steps with gRPC, the real clock and the trainer thread.

Knows how an answer comes about; knows no algorithm and no lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pfl_node import aggregate
from pfl_node.bell import Bell
from pfl_node.errors import PeerError, Reason, Refused
from pfl_node.mailbox import Mailbox
from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.seeds import fresh_seed, seed_from
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
    diverged,
)
from pfl_node.types import Eval, Offer, PeerId
from pfl_node.work import Work

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.trainer import Trainer
    from pfl_node.wire.client import PeerClient

T = TypeVar("T")
Call = Callable[[PeerId, str], Awaitable[T]]  # of a peer at an address

INLINE_NUMBERS = 250_000  # averaging fewer numbers than this is quicker than handing it to a thread


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
        self._jobs = 0
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
            while True:
                answer = await self._answer(flow.send(answer))
        except StopIteration:
            return
        finally:
            flow.close()

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
                return await self._fresh(step)
            case Train():
                return await self._train(step)
            case Score():
                return await self._score(step)
            case Average():
                return await self._average(step)
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
        sends = {p: asyncio.create_task(self._send_one(p, step)) for p in step.to}
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
        answers = await asyncio.gather(*(self._reach(call, p, go) for p in peers))
        return {p: a for p, a in zip(peers, answers, strict=True) if a is not None}

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

    # -- learning ------------------------------------------------------------------------------------------

    def _seed(self, kind: str) -> int:
        """A new one for every job; it goes on where it was after a restart, because the round is part of it."""
        self._jobs += 1
        return seed_from(self.policy.seed, self.policy.me, self.policy.round, kind, self._jobs)

    async def _fresh(self, step: Fresh) -> Model:
        learner, seed = self.desk.learner, fresh_seed(self.desk.settings, self.policy.me, step.seed)
        return await self.desk.trainer.soon(lambda: learner.fresh(seed, step.part))

    async def _train(self, step: Train) -> Model:
        learner, seed = self.desk.learner, self._seed("train")
        with self.desk.work.of("trained"):
            model = await self.desk.trainer.do(
                lambda between: learner.train(
                    step.model,
                    seed=seed,
                    only=step.only,
                    epochs=step.epochs,
                    steps=step.steps,
                    lr=step.lr,
                    prox=step.prox,
                    anchor=step.anchor,
                    between=between,
                )
            )
        if model.is_finite():
            return model
        self.desk.diary.record(diverged(self.policy.round))
        return step.model

    async def _score(self, step: Score) -> tuple[Eval, ...]:
        learner, seed = self.desk.learner, self._seed("score")
        with self.desk.work.of("scored", len(step.models)):
            return await self.desk.trainer.soon(
                lambda: learner.score(
                    step.models,
                    split=step.split,
                    samples=step.samples,
                    own_sample_each=step.own_sample_each,
                    seed=seed,
                )
            )

    async def _average(self, step: Average) -> Model:
        if sum(m.layout.size for m in step.models) < INLINE_NUMBERS:
            return aggregate.mean(step.models, step.weights)
        return await asyncio.to_thread(aggregate.mean, step.models, step.weights)
