"""Answers the steps of a simulated policy that learn: at once, with the virtual seconds that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl_node.model import Model
from pfl_node.node.startup import fresh_seed
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import UNTRAINED
from pfl_node.seeds import seed_from
from pfl_node.sim.costs import batches, distilling, predicting
from pfl_node.sim.world import World
from pfl_node.steps import Average, Distill, Fresh, Predict, Score, Step, Train, diverged

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode

Answered = tuple[float, Any]  # seconds of the node's trainer, and the answer


class SimStudy:
    """The learning half of a simulated driver. An answer depends on nothing that happens meanwhile."""

    def __init__(self, policy: Policy, node: SimNode, world: World) -> None:
        self.policy = policy
        self.node = node
        self.world = world
        self._jobs = 0

    def answer(self, step: Step[Any]) -> Answered:
        learner, settings, costs = self.node.learner, self.world.settings, self.world.costs
        match step:
            case Fresh():
                seed = fresh_seed(settings, self.node.id, step.seed, common=step.common)
                return 0.0, learner.fresh(seed, step.part)
            case Train():
                model = learner.train(step.model, seed=self._seed("train"), **step.options)
                return costs.batch * batches(step, settings.train, learner.samples), self._finite(step, model)
            case Distill():
                model = learner.distill(step.model, seed=self._seed("train"), **step.options)
                return distilling(step, costs, self._auxiliary), self._finite(step, model)
            case Predict():
                said = learner.predict(step.model, seed=self._seed("predict"), **step.options)
                return predicting(step, costs, learner.samples, self._auxiliary), said
            case Score():
                scores = learner.score(step.models, seed=self._seed("score"), **step.options)
                return costs.sample * sum(score.samples for score in scores), scores
            case Average():
                seconds, sifted = self._sifted(step)
                return seconds, self.world.averages.combine(settings.aggregate, sifted)
        raise TypeError(f"a policy asked for {step!r}, which the simulator does not know")

    def _sifted(self, step: Average) -> tuple[float, Average]:
        """Without the models that the guard's gate refuses, and what it takes to score them."""
        guard, learner = self.node.guard, self.node.learner
        models = guard.to_score(step, self.policy.model)
        if not models:
            return 0.0, step
        if guard.untrained is None:
            seed = fresh_seed(self.world.settings, self.node.id, UNTRAINED)
            models = (*models, learner.fresh(seed, "model"))
        scores = learner.score(models, split="val", samples=guard.settings.samples, seed=self._seed("gate"))
        return self.world.costs.sample * sum(s.samples for s in scores), guard.sifted(
            step, scores, self.node.clock.now
        )

    def _seed(self, kind: str) -> int:
        self._jobs += 1
        return seed_from(self.policy.seed, self.policy.me, self.policy.round, kind, self._jobs)

    def _finite(self, step: Train | Distill, model: Model) -> Model:
        """A training that diverged is thrown away."""
        if model.is_finite():
            return model
        self.node.record(diverged(self.policy.round))
        return step.model

    @property
    def _auxiliary(self) -> int:
        layout = self.node.learner.predictions
        return layout.entries[0].shape[0] if layout else 0
