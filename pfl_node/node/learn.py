"""Answers the steps of a policy that learn, with the trainer's thread. Knows no network and no other node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pfl_node import aggregate
from pfl_node.failpoints import afailpoint
from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import UNTRAINED
from pfl_node.seeds import fresh_seed, seed_from
from pfl_node.steps import Average, Distill, Fresh, Predict, Score, Step, Train, diverged
from pfl_node.types import Eval

if TYPE_CHECKING:
    from pfl_node.node.context import NodeContext

INLINE_NUMBERS = 250_000  # averaging fewer numbers than this is quicker than handing it to a thread


class LearningSteps:
    """The learning half of a driver."""

    def __init__(self, policy: Policy, context: NodeContext) -> None:
        self.policy = policy
        self.context = context
        self._jobs = 0

    def _seed(self, kind: str) -> int:
        """A new one for every job, also after a restart, when jobs are counted anew: the round is part of it."""
        self._jobs += 1
        return seed_from(self.policy.seed, self.policy.me, self.policy.round, kind, self._jobs)

    async def answer(self, step: Step[Any]) -> Any:
        match step:
            case Fresh():
                return await self._fresh(step)
            case Train():
                return await self._long(step, "trained", self.context.learner.train)
            case Distill():
                return await self._long(step, "distilled", self.context.learner.distill)
            case Predict():
                return await self._predict(step)
            case Score():
                return await self._score(step)
            case Average():
                return await self._average(step)
        raise TypeError(f"a policy asked for {step!r}, which this driver does not know")

    async def _fresh(self, step: Fresh) -> Model:
        learner = self.context.learner
        seed = fresh_seed(self.context.settings, self.policy.me, step.seed, common=step.common)
        return await self.context.trainer.soon(lambda: learner.fresh(seed, step.part))

    async def _long(self, step: Train | Distill, what: str, work: Callable[..., Model]) -> Model:
        """A training; one that diverged is thrown away."""
        seed = self._seed("train")
        if await afailpoint("train"):
            return step.model
        with self.context.work.of(what):
            model = await self.context.trainer.do(
                lambda between: work(step.model, seed=seed, between=between, **step.options)
            )
        if model.is_finite():
            return model
        self.context.diary.record(diverged(self.policy.round))
        return step.model

    async def _predict(self, step: Predict) -> Model:
        learner, seed = self.context.learner, self._seed("predict")
        with self.context.work.of("predicted"):
            return await self.context.trainer.do(
                lambda between: learner.predict(step.model, seed=seed, between=between, **step.options)
            )

    async def _score(self, step: Score) -> tuple[Eval, ...]:
        learner, seed = self.context.learner, self._seed("score")
        with self.context.work.of("scored", len(step.models)):
            return await self.context.trainer.soon(lambda: learner.score(step.models, seed=seed, **step.options))

    async def _average(self, step: Average) -> Model:
        if await afailpoint("merge"):
            return step.mine
        step = await self._sifted(step)
        work = partial(
            aggregate.combine,
            self.context.settings.aggregate,
            step.mine,
            step.others,
            step.weights,
            step.own,
            claimed=step.claimed,
        )
        if sum(m.layout.size for m in step.models) < INLINE_NUMBERS:
            return work()
        return await asyncio.to_thread(work)

    async def _sifted(self, step: Average) -> Average:
        """Without the models that the guard's gate refuses; mine and theirs are scored for that on my validation
        data, and once an untrained one."""
        guard, learner = self.context.guard, self.context.learner
        models = guard.to_score(step, self.policy.model)
        if not models:
            return step
        if guard.untrained is None:
            models = (*models, await self._fresh(Fresh(seed=UNTRAINED)))
        seed, samples = self._seed("gate"), guard.settings.samples
        with self.context.work.of("gated", len(models)):
            scores = await self.context.trainer.soon(
                lambda: learner.score(models, split="val", samples=samples, seed=seed)
            )
        return guard.sifted(step, scores, time.monotonic())
