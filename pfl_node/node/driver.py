"""Runs a policy inside the daemon: answers its steps with gRPC, the real clock and the trainer thread.

Knows how an answer comes about; knows no algorithm and no lifecycle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

from pfl_node.errors import ConfigError, PeerError, Reason, Refused
from pfl_node.fault import users_fault
from pfl_node.model import Layout
from pfl_node.node.context import NodeContext
from pfl_node.node.gather import LOOK, Gatherer
from pfl_node.node.learn import LearningSteps
from pfl_node.node.linger import LingerTimer
from pfl_node.node.push import Call, Pusher
from pfl_node.node.waiting import PendingWaits
from pfl_node.policies.base import Policy
from pfl_node.protocol.deadlines import Deadlines
from pfl_node.steps import (
    Ask,
    Fetch,
    Flow,
    Gather,
    Linger,
    Peers,
    Publish,
    Receive,
    Record,
    Report,
    Send,
    Sleep,
    Step,
)
from pfl_node.types import Eval, Offer, Part, PeerId

T = TypeVar("T")
ANSWERED = frozenset({"Fetch", "EvaluateModel"})  # calls whose answer can be bad
SPOILED = frozenset({Reason.NOT_FINITE, Reason.CHECKSUM, Reason.BOMB, Reason.TOO_LARGE, Reason.GARBAGE})


class Driver:
    """One policy, one node."""

    def __init__(self, policy: Policy, context: NodeContext) -> None:
        self.policy = policy
        self.context = context
        self.waits = PendingWaits()
        patience = Deadlines(context.settings.round, time.monotonic())
        self._rounds = Gatherer(context, self.waits, patience, lockstep=policy.lockstep)
        self._study = LearningSteps(policy, context)
        self._lingering = LingerTimer(context.settings.round.linger)
        self._pushes = Pusher(context, self.waits, self._reach, patience)
        self._pulls = asyncio.Semaphore(context.settings.wire.concurrency)  # of what I ask for

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
            await self._pushes.finish()

    async def _drive(self, flow: Flow) -> None:
        """What fails while a step is answered fails in the policy, at the line that asked."""
        answer: Any = None
        failure: Exception | None = None
        try:
            while (step := self._next(flow, answer, failure)) is not None:
                answer = failure = None
                try:
                    answer = await self._answer(step)
                except Exception as error:
                    failure = error
        finally:
            flow.close()

    def _next(self, flow: Flow, answer: Any, failure: Exception | None) -> Step[Any] | None:
        """What the policy asks next; None: it has returned. A failure of a user's own policy is one line."""
        try:
            step: Any = flow.throw(failure) if failure else flow.send(answer)
            while not isinstance(step, Step):
                step = flow.throw(TypeError(f"a policy awaits steps only, not {step!r}"))
            return step
        except StopIteration:
            return None
        except Exception as error:
            if fault := users_fault("policy", self.context.settings.policy.name, error, ConfigError):
                raise fault from error
            raise

    async def _lane(self) -> None:
        """The handlers, one after the other: every model of the inbox, and the silence between them."""
        box, notifier = self.context.mailbox, self.context.notifier
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
            await notifier.wait(left)

    async def _answer(self, step: Step[Any]) -> Any:
        match step:
            case Sleep():
                return await self._sleep(step)
            case Peers():
                return self._peers()
            case Send():
                return await self._pushes.send(step)
            case Gather():
                return await self._rounds.gather(step)
            case Receive():
                return await self._receive(step)
            case Fetch():
                return await self._fetch(step)
            case Ask():
                return await self._ask(step)
            case Linger():
                return await self._linger(step)
            case Publish():
                return self.context.diary.published(step)
            case Record():
                return self.context.diary.record(step)
            case Report():
                return await self.context.diary.report(step)
        return await self._study.answer(step)

    # -- time ----------------------------------------------------------------------------------------------

    async def _sleep(self, step: Sleep) -> float:
        await asyncio.sleep(step.seconds)
        return asyncio.get_running_loop().time()

    def _peers(self) -> tuple[PeerId, ...]:
        finished = self.context.peers.finished() if self.policy.lockstep else ()
        return tuple(sorted({*self.context.peers(), *finished}))

    async def _linger(self, step: Linger) -> bool:
        end = inf if step.seconds is None else time.monotonic() + step.seconds
        self.context.peers.i_am_done()
        with self.waits.on("their last rounds") as wait:
            while left := self._lingering.left(time.monotonic(), busy := self.context.peers.at_work()):
                wait.peers, wait.until = tuple(busy), min(end, time.monotonic() + left)
                if time.monotonic() >= end:
                    break
                await self.context.notifier.wait(min(LOOK, left, end - time.monotonic()))
        return not left

    # -- messages ------------------------------------------------------------------------------------------

    async def _each(self, call: str, peers: Sequence[PeerId], go: Call[T]) -> dict[PeerId, T]:
        """Call these peers, as many at a time as the settings allow. Those that are gone or refuse are missing, as
        are those in quarantine, whose answer nobody would use."""

        once = self.context.guard.free(dict.fromkeys(peers), time.monotonic())
        with self.waits.on(call) as wait:
            wait.peers = still = dict.fromkeys(once)

            async def pull(peer: PeerId) -> T | None:
                async with self._pulls:
                    answer = await self._reach(call, peer, go)
                del still[peer]
                return answer

            answers = await asyncio.gather(*map(pull, once))
        return {p: a for p, a in zip(once, answers, strict=True) if a is not None}

    async def _reach(self, call: str, peer: PeerId, go: Call[T]) -> T | None:
        """Call a peer; None when it is gone or refuses, which is told to the diary."""
        address = self.context.peers().get(peer)
        if address is None:
            return None
        try:
            return await go(peer, address)
        except PeerError as error:
            if isinstance(error, Refused) and error.reason is Reason.STALE_ROUND:
                self.context.mailbox.overtaken(peer, error.round)
            if isinstance(error, Refused) and call in ANSWERED and error.reason in SPOILED:
                self.context.guard.offence(peer, error.reason, time.monotonic())
            self.context.diary.failed(call, error)
            return None

    async def _receive(self, step: Receive) -> tuple[Offer, ...]:
        loop, box = asyncio.get_running_loop(), self.context.mailbox
        patience = self.context.settings.round.patience if step.patience is None else step.patience
        end = loop.time() + patience
        while len(box) < step.n and await self.context.notifier.wait(max(0.0, end - loop.time())):
            pass
        return box.take(step.n)

    async def _fetch(self, step: Fetch) -> tuple[Offer, ...]:
        client, layout = self.context.client, self._layout(step.part)
        if layout is None:
            return ()
        found = await self._each("Fetch", step.peers, lambda p, a: client.fetch(p, a, step.part, layout))
        return self.context.guard.fetched(found.values(), self.policy.model, time.monotonic())

    def _layout(self, part: Part) -> Layout | None:
        learner = self.context.learner
        return learner.predictions if part == "predictions" else learner.layout.of(part)

    async def _ask(self, step: Ask) -> dict[PeerId, Eval]:
        client = self.context.client
        return await self._each("EvaluateModel", step.peers, lambda p, a: client.evaluate(p, a, step.model))
