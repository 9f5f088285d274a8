"""The Trainer port of the daemon: jobs run on a thread that all nodes of the process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pfl_node.aggregate import combine
from pfl_node.learning.trainer import TrainerThread
from pfl_node.model import Model
from pfl_node.node.ports import Job, LearnerFacts
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.settings import AggregateSettings
from pfl_node.steps import Average

COST = 1.6  # cost of a score relative to its time on the thread: its model is also received and decoded
INLINE_NUMBERS = 250_000  # below this size, averaging is faster than a thread hand-over


class ThreadTrainer:
    """`load` runs on the thread and returns the learner."""

    def __init__(self, thread: TrainerThread, load: Callable[[DpAccount], Any]) -> None:
        self._thread = thread
        self._load = load
        self._learner: Any = None

    @classmethod
    def of(cls, thread: TrainerThread, learner: Any) -> ThreadTrainer:
        """A trainer with an existing learner."""
        made = cls(thread, lambda _: learner)
        made._learner = learner
        return made

    async def open(self, account: DpAccount) -> LearnerFacts:
        self._learner = await self._thread.do(lambda _: self._load(account))
        if close := getattr(self._learner, "close", None):  # ends the processes that read data
            self._thread.at_end(close)
        facts: LearnerFacts = self._learner
        return facts

    async def do(self, job: Job) -> Any:
        return await self._thread.do(lambda between: job.run(self._learner, between=between))

    async def soon(self, job: Job, spent: Callable[[float], None] | None = None) -> Any:
        answer, seconds = await self._thread.soon(lambda: self._timed(job))
        if spent:
            spent(seconds * COST)
        return answer

    async def combine(self, rule: AggregateSettings, step: Average) -> Model:
        def work() -> Model:
            return combine(rule, step.mine, step.others, step.weights, step.own, claimed=step.claimed)

        if sum(m.layout.size for m in step.models) < INLINE_NUMBERS:
            return work()
        return await asyncio.to_thread(work)

    def _timed(self, job: Job) -> tuple[Any, float]:
        began = time.monotonic()
        return job.run(self._learner), time.monotonic() - began
