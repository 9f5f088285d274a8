"""Answers the steps of a policy that learn, with the trainer's thread. Knows no network and no other node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pfl_node import aggregate
from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.seeds import fresh_seed, seed_from
from pfl_node.steps import Average, Fresh, Score, Train, diverged
from pfl_node.types import Eval

if TYPE_CHECKING:
    from pfl_node.driver import Desk

INLINE_NUMBERS = 250_000  # averaging fewer numbers than this is quicker than handing it to a thread


class Study:
    """The learning half of a driver."""

    def __init__(self, policy: Policy, desk: Desk) -> None:
        self.policy = policy
        self.desk = desk
        self._jobs = 0

    def _seed(self, kind: str) -> int:
        """A new one for every job; it goes on where it was after a restart, because the round is part of it."""
        self._jobs += 1
        return seed_from(self.policy.seed, self.policy.me, self.policy.round, kind, self._jobs)

    async def fresh(self, step: Fresh) -> Model:
        learner, seed = self.desk.learner, fresh_seed(self.desk.settings, self.policy.me, step.seed)
        return await self.desk.trainer.soon(lambda: learner.fresh(seed, step.part))

    async def train(self, step: Train) -> Model:
        learner, seed = self.desk.learner, self._seed("train")
        with self.desk.work.of("trained"):
            model = await self.desk.trainer.do(
                lambda between: learner.train(step.model, seed=seed, between=between, **step.options)
            )
        if model.is_finite():
            return model
        self.desk.diary.record(diverged(self.policy.round))
        return step.model

    async def score(self, step: Score) -> tuple[Eval, ...]:
        learner, seed = self.desk.learner, self._seed("score")
        with self.desk.work.of("scored", len(step.models)):
            return await self.desk.trainer.soon(lambda: learner.score(step.models, seed=seed, **step.options))

    async def average(self, step: Average) -> Model:
        if sum(m.layout.size for m in step.models) < INLINE_NUMBERS:
            return aggregate.mean(step.models, step.weights)
        return await asyncio.to_thread(aggregate.mean, step.models, step.weights)
