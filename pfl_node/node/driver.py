"""Runs a policy and answers its steps. Independent of the algorithm and of the node's lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Any

from pfl_node.errors import PolicyFailed, SimulationStuck
from pfl_node.node.clock import now
from pfl_node.node.context import NodeContext
from pfl_node.node.gather import POLL_INTERVAL, Gatherer
from pfl_node.node.learn import LearningSteps
from pfl_node.node.linger import LingerTimer
from pfl_node.node.peer_calls import Calls
from pfl_node.node.push import Pusher, check_message
from pfl_node.node.round_schedule import RoundSchedule
from pfl_node.node.waiting import PendingWaits
from pfl_node.plugin import users_fault
from pfl_node.policies.base import Policy
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
from pfl_node.types import Offer

MAX_STEPS_WITHOUT_TIME = 100_000  # steps at the same time after which a policy counts as an endless loop
QUIET_PUSHES = 3  # `on_quiet` waits at least as long as this number of pushes takes
CHECK_SECONDS_PER_PEER = 0.001  # between two checks of all peers


class Driver:
    """Drives one policy of one node."""

    def __init__(self, policy: Policy, context: NodeContext) -> None:
        self.policy = policy
        self.context = context
        self.waits = PendingWaits()
        context.deadlines.begin(now())
        self._calls = Calls(context, self.waits)
        self._rounds = Gatherer(context, self.waits, context.deadlines, lockstep=policy.lockstep)
        self._study = LearningSteps(policy, context)
        self.schedule = RoundSchedule(policy, context)
        self._lingering = LingerTimer(max(context.settings.round.linger, 2 * (context.settings.round.every or 0)))
        self._pushes = Pusher(context, self._calls, self.waits, context.deadlines)
        self._last_handled = now()  # when the last handler ended
        self._asked: dict[str, Step[Any]] = {}  # the pending step of main and of each handler
        self._moment, self._steps = 0.0, 0  # when the clock last advanced, and the steps since then

    async def run(self) -> None:
        """Returns when `main` does. An exception in the policy ends the node."""
        if self.policy.more:
            self.policy.round = await self.schedule.begins(self.policy.round)
        flows = [asyncio.create_task(self._drive(self.policy.main(), "main"), name="main")]
        if self.policy.pushes():
            flows.append(asyncio.create_task(self._run_handlers(), name="handlers"))
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
            for flow in flows:
                if flow.done():
                    flow.result()
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
            await self._pushes.finish()

    def dump(self) -> dict[str, Any]:
        """State for the next segment of a simulation, without the policy."""
        return {
            "pushes": self._pushes.dump(),
            "lingering": self._lingering.dump(),
            "jobs": self._study.jobs,
            "heard": self._last_handled,
        }

    def load(self, row: Mapping[str, Any]) -> None:
        self._pushes.load(row["pushes"])
        self._lingering.load(row["lingering"])
        self._study.jobs, self._last_handled = row["jobs"], row["heard"]

    async def _drive(self, flow: Flow, name: str) -> None:
        """An exception while a step is answered is raised in the policy, at its `await`."""
        answer: Any = None
        failure: Exception | None = None
        try:
            while (step := self._next(flow, answer, failure)) is not None:
                self._asked[name], answer, failure = step, None, None
                try:
                    answer = await self._answer(step)
                except Exception as error:
                    failure = error
        except Exception as error:
            error.add_note(f"{self.policy.me}, {name}")
            raise
        finally:
            flow.close()

    def _next(self, flow: Flow, answer: Any, failure: Exception | None) -> Step[Any] | None:
        """The policy's next step; None: it has returned. An error in a user's policy is reported in one line."""
        try:
            step: Any = flow.throw(failure) if failure else flow.send(answer)
            while not isinstance(step, Step):
                step = flow.throw(TypeError(f"a policy awaits steps only, not {step!r}"))
            return step
        except StopIteration:
            return None
        except Exception as error:
            if fault := users_fault("policy", self.context.settings.policy.name, error, PolicyFailed):
                raise fault from error
            raise

    def waits_for(self) -> str:
        """The pending step of `main`, for an operator who wonders why nothing happens."""
        if next := self.schedule.next:
            return f"round {next.round} ({next.why})"
        step = self._asked.get("main")
        if isinstance(step, Gather):
            return f"Gather of round {step.round} from {', '.join(sorted(self.waits.peers))}"
        return type(step).__name__

    async def _run_handlers(self) -> None:
        """Run the handlers one at a time: on_model for each model in the inbox, on_quiet if none arrives."""
        box = self.context.mailbox
        while True:
            if offers := box.take(1):
                await self._drive(self.policy.on_model(offers[0]), "on_model")
                self._last_handled = now()
                continue
            left = self._quiet_in()
            if left is not None and left <= 0:
                await self._drive(self.policy.on_quiet(), "on_quiet")
                self._last_handled = now()
                continue
            await self.context.notifier.wait(left, "inbox")

    def _quiet_in(self) -> float | None:
        """Seconds until on_quiet is due; None: never. A model that is arriving postpones it, and so does a slow
        network: if this node's pushes take long, its peers' pushes do, too."""
        patience, most = self.policy.quiet_after, self.context.settings.round.transfer
        if patience is None:
            return None
        patience = max(patience, min(QUIET_PUSHES * self._pushes.seconds, most))
        left = self._last_handled + patience - now()
        postponed = self.context.mailbox.arriving and now() < self._last_handled + most
        return POLL_INTERVAL if left <= 0 and postponed else left

    async def _answer(self, step: Step[Any]) -> Any:
        self._count(step)
        if self.context.hold:
            await self.context.hold(None)
        if self.schedule.next:
            await self.schedule.opened()
        match step:
            case Sleep():
                return await self._sleep(step)
            case Peers():
                return self.context.peers.everyone(finished=self.policy.lockstep)
            case Send():
                return await self._pushes.send(step)
            case Gather():
                return await self._rounds.gather(step)
            case Receive():
                return await self._receive(step)
            case Fetch():
                return await self._calls.fetch(step, self.policy.model)
            case Ask():
                return await self._calls.ask(step)
            case Linger():
                return await self._linger(step)
            case Publish():
                self._check_published(step)
                return self.context.recorder.published(step)
            case Record():
                return self.context.recorder.record(step)
            case Report():
                self._check_published(step)
                return await self._report(step)
        return await self._study.answer(step)

    def _check_published(self, step: Publish | Report) -> None:
        if self.policy.serves:
            check_message(step, self.policy.vectors, self.context.learner.layout)

    async def _report(self, step: Report) -> None:
        """A round is complete. The answer comes when the next one may begin."""
        await self.context.recorder.report(step)
        if self.context.hold:
            await self.context.hold(step)
        if self.policy.more_after(self.policy.round):
            self.policy.round = await self.schedule.begins(self.policy.round + 1) - 1

    # -- time ----------------------------------------------------------------------------------------------

    async def _sleep(self, step: Sleep) -> float:
        await asyncio.sleep(step.seconds)
        return now()

    def _count(self, step: Step[Any]) -> None:
        """Stop a policy that never waits: it would block the event loop."""
        if now() > self._moment:
            self._moment, self._steps = now(), 0
        self._steps += 1
        if self._steps > MAX_STEPS_WITHOUT_TIME:
            text = f"took {MAX_STEPS_WITHOUT_TIME} steps without waiting and awaits {type(step).__name__} again"
            raise SimulationStuck(f"{self.policy.me} {text}")

    async def _linger(self, step: Linger) -> bool:
        if self.policy.lockstep and self.policy.stops_after is not None:
            return True  # stopped early: peers in lockstep would wait for its models
        end = inf if step.seconds is None else now() + step.seconds
        self.context.peers.announce_finished()
        with self.waits.on("their last rounds") as wait:
            while left := self._lingering.left(now(), busy := self.context.peers.unfinished()):
                wait.peers, wait.until = tuple(busy), min(end, now() + left)
                if now() >= end:
                    break
                interval = max(POLL_INTERVAL, CHECK_SECONDS_PER_PEER * len(busy))
                await asyncio.sleep(min(interval, left, end - now()))
        return not left

    # -- messages ------------------------------------------------------------------------------------------

    async def _receive(self, step: Receive) -> tuple[Offer, ...]:
        box = self.context.mailbox
        end = now() + (self.context.settings.round.patience if step.patience is None else step.patience)
        while len(box) < step.n and await self.context.notifier.wait(end - now(), "inbox"):
            pass
        return box.take(step.n)
