"""`bandit` without one of its parts, for bandit-ablation.toml."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_node.model import Model
from pfl_node.policies.bandit import Bandit, probability
from pfl_node.steps import Average, Score
from pfl_node.types import Offer


class EveryModel(Bandit):
    """Averages all received models and learns nothing about peers (without steps 4, 5 and 8; 2026)."""

    async def average(self, v: Model, offers: Sequence[Offer]) -> tuple[Model, Model]:
        w = await Average(v, [o.model for o in offers])
        alone, both = await Score([v, w], split="val", samples=self.cfg.score_samples)
        return w, v.plus(w.plus(v, -1), probability(both, alone))
