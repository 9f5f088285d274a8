"""Answers Fresh, Train, Gradient, Distill, Predict, Score and Average with the node's trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_node.errors import DeviceMemoryFull
from pfl_node.failpoints import afailpoint
from pfl_node.model import Model
from pfl_node.node.clock import now
from pfl_node.node.ports import Job, Kind
from pfl_node.node.startup import fresh_seed
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import UNTRAINED
from pfl_node.protocol.privacy.pair_noise import pair_seeds
from pfl_node.seeds import seed_from
from pfl_node.steps import (
    OUT_OF_MEMORY,
    Average,
    Distill,
    Fresh,
    Gradient,
    Predict,
    Record,
    Score,
    Step,
    Train,
    diverged,
)
from pfl_node.types import Eval

if TYPE_CHECKING:
    from pfl_node.node.context import NodeContext


class LearningSteps:
    def __init__(self, policy: Policy, context: NodeContext) -> None:
        self.policy = policy
        self.context = context
        self.jobs = 0  # number of jobs that got a seed
        self.paired = -1  # the last round whose noise partners cancel

    def _seed(self, kind: str) -> int:
        """Unique for every job. A restart resets `jobs`, so the seed includes the round."""
        self.jobs += 1
        return seed_from(self.policy.seed, self.policy.me, self.policy.round, kind, self.jobs)

    async def answer(self, step: Step[Any]) -> Any:
        match step:
            case Fresh():
                return await self._fresh(step)
            case Train():
                return await self._train_ahead(step)
            case Gradient():
                return await self._gradient(step)
            case Distill():
                return await self._train(step, "distill", "distilled")
            case Predict():
                return await self._predict(step)
            case Score():
                return await self._score(step)
            case Average():
                return await self._average(step)
        raise TypeError(f"the policy awaited {step!r}, which is not a known step")

    def _pairs(self, step: Train) -> dict[str, Any]:
        """The noise that the partners' noise cancels. Never twice in a round: two messages with the same noise
        would reveal their difference. Keys are new in each process, so a repeated round has other noise."""
        policy, context = self.policy, self.context
        if not policy.correlated:
            return {}
        again, self.paired = policy.round <= self.paired, max(self.paired, policy.round)
        partners = () if again else step.partners
        seeds = pair_seeds(policy.me, partners, context.shared_secret, context.settings.run, policy.round)
        context.learner.account.partners = len(seeds)
        return {"partners": (seeds, policy.pair_degree(policy.cfg))}

    async def _fresh(self, step: Fresh) -> Model:
        seed = fresh_seed(self.context.settings, self.policy.me, step.seed, common=step.common)
        options = {"seed": seed, "part": step.part, "local": step.local}
        model: Model = await self.context.trainer.soon(Job("fresh", options=options))
        return model

    async def _train_ahead(self, step: Train) -> Model:
        """With `train.lookahead`, the training of an average starts beyond it."""
        more: dict[str, Any] = {"round": self.policy.round, **self._pairs(step)}
        ahead = self.context.lookahead
        if ahead.share and (past := ahead.past(step)) is not None:
            more |= {"past": past, "lookahead": ahead.share}
        model = await self._train(step, "train", "trained", **more)
        ahead.trained(model)
        return model

    async def _gradient(self, step: Gradient) -> Model:
        """The seed does not depend on earlier jobs, so that a policy can request the same batch again."""
        seed = seed_from(self.policy.seed, self.policy.me, self.policy.round, "gradient")
        try:
            with self.context.work.of("differentiated"):
                job = Job("gradient", step.model, {"seed": seed, **step.options})
                gradient: Model = await self.context.trainer.do(job)
            if gradient.is_finite():
                return gradient
            self.context.recorder.record(diverged(self.policy.round))
        except DeviceMemoryFull as error:
            self._skipped(error)
        return Model(step.model.layout, np.zeros_like(step.model.vector))

    async def _train(self, step: Train | Distill, kind: Kind, what: str, **more: Any) -> Model:
        """If training diverges, return the model from before it."""
        job = Job(kind, step.model, {"seed": self._seed("train"), **step.options, **more})
        if await afailpoint("train"):
            return step.model
        try:
            with self.context.work.of(what):
                model: Model = await self.context.trainer.do(job)
        except DeviceMemoryFull as error:
            self._skipped(error)
            return step.model
        if model.is_finite():
            return model
        self.context.recorder.record(diverged(self.policy.round))
        return step.model

    def _skipped(self, error: DeviceMemoryFull) -> None:
        """Training needs too much memory: the model stays as it was."""
        hint = "lower train.batch, and raise train.accumulate by the same factor"
        data = {"round": self.policy.round, "error": str(error), "hint": hint}
        self.context.recorder.record(Record(OUT_OF_MEMORY, data))

    async def _predict(self, step: Predict) -> Model:
        job = Job("predict", step.model, {"seed": self._seed("predict"), **step.options})
        with self.context.work.of("predicted"):
            predictions: Model = await self.context.trainer.do(job)
        return predictions

    async def _score(self, step: Score) -> tuple[Eval, ...]:
        job = Job("score", tuple(step.models), {"seed": self._seed("score"), **step.options})
        with self.context.work.of("scored", len(step.models)):
            scores: tuple[Eval, ...] = await self.context.trainer.soon(job)
        return scores

    async def _average(self, step: Average) -> Model:
        if await afailpoint("merge"):
            return step.mine
        rule = self.context.settings.aggregate
        model = await self.context.trainer.combine(rule, await self._filtered(step))
        self.context.lookahead.averaged(self.policy.round, step, model)
        return model

    async def _filtered(self, step: Average) -> Average:
        """Remove the models that the guard's gate rejects. The gate needs the scores of our model and of theirs on
        our validation data and, once, of an untrained model."""
        guard = self.context.guard
        models = guard.to_score(step, self.policy.model)
        if not models:
            return step
        if guard.untrained is None:
            models = (*models, await self._fresh(Fresh(seed=UNTRAINED)))
        options = {"split": "val", "samples": guard.settings.samples, "seed": self._seed("gate")}
        with self.context.work.of("gated", len(models)):
            scores = await self.context.trainer.soon(Job("score", models, options))
        return guard.sifted(step, scores, now())
