"""`bandit` without one of its parts, for bandit-ablation.toml."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_node.model import Model
from pfl_node.policies.bandit import Bandit
from pfl_node.steps import Average
from pfl_node.types import Offer


class EveryModel(Bandit):
    """Averages all received models, whatever their validation loss (without steps 4 and 5; 2026)."""

    async def average(self, v: Model, offers: Sequence[Offer]) -> Model:
        return await Average(v, [o.model for o in offers])
