"""The local state of a node: every job gets the current one, and a training replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.model import LocalState, Model
from pfl_node.node.ports import TRAINING, Job, LearnerFacts, Trained, Trainer
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.settings import AggregateSettings
from pfl_node.steps import Average


class StatefulTrainer:
    """The Trainer port of a node, with the node's local state. Without one, jobs pass unchanged."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._training = asyncio.Lock()  # each training continues from the state after the one before
        self.state: LocalState | None = None

    async def open(self, account: DpAccount) -> LearnerFacts:
        return await self._trainer.open(account)

    async def start(self, learner: LearnerFacts, seed: int) -> None:
        """Create the initial state, if the learner has one."""
        if learner.stateful:
            self.state = await self._trainer.soon(Job("start", options={"seed": seed}))

    def restore(self, kept: LocalState | None) -> None:
        """Continue with the state of a checkpoint."""
        if self.state is None or kept is None:
            return
        if kept.layout != self.state.layout:
            raise StoreError(
                "the checkpoint and the task have different private tensors: restore `private` and the model of "
                "the task, or move the checkpoint away to start again at round 0"
            )
        self.state = kept

    def with_state(self, job: Job) -> Job:
        if self.state is None or job.kind in ("fresh", "reload"):
            return job
        return replace(job, state=self.state if job.kind in TRAINING else self.state.for_evaluation)

    async def do(self, job: Job) -> Any:
        if self.state is None or job.kind not in TRAINING:
            return await self._trainer.do(self.with_state(job))
        async with self._training:
            return self._keep(await self._trainer.do(self.with_state(job)))

    def _keep(self, result: Trained) -> Model:
        """A training that diverged leaves the state as it was."""
        if result.model.is_finite():
            self.state = result.state
        return result.model

    async def soon(self, job: Job, spent: Callable[[float], None] | None = None) -> Any:
        return await self._trainer.soon(self.with_state(job), spent)

    async def combine(self, rule: AggregateSettings, step: Average) -> Model:
        return await self._trainer.combine(rule, step)
