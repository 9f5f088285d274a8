"""`greedy`: average with the peers on whose data my model performs best. Line numbers refer to the thesis'
Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from pfl_node.policies.random_pull import RandomPull
from pfl_node.policies.rating import Rating, best_first, rate_peers
from pfl_node.steps import Fetch
from pfl_node.types import Eval, Offer, PeerId


class Greedy(RandomPull):
    """Greedy (Karlsson & Onoszko 2021, Algorithm 2)."""

    class Config(RandomPull.Config, Rating):
        # paper: table 3.2 prints 20 of "-" for Greedy; here: 4 of 20, because chapter 5 says so for this family
        m_sample: int = Field(20, ge=1, description="random peers that are rated in a round")
        m_selected: int = Field(4, ge=1, description="how many of the best of those are averaged with mine")

        @model_validator(mode="after")
        def _selected_of_sample(self) -> Greedy.Config:
            if self.m_selected > self.m_sample:
                raise ValueError(f"m_selected = {self.m_selected} is more than m_sample = {self.m_sample}")
            return self

    asks = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.told: dict[PeerId, Eval | None] = {}  # scores of my model; cleared when it changes
        self.here: dict[PeerId, Offer] = {}  # models fetched for rating

    async def select(self) -> Sequence[PeerId]:
        selected, _ = await self.greedily()  # 4
        return selected

    async def greedily(self) -> tuple[list[PeerId], list[PeerId]]:  # 8
        """The selected peers, and all sampled peers that answered."""
        sampled = self.sample(await self.population(), self.cfg.m_sample)  # 9
        await self.rate([p for p in sampled if p not in self.told])  # 10-14
        self.here = {p: self.here[p] for p in sampled if p in self.here}
        rated = [(p, score) for p in sampled if (score := self.told[p]) is not None]
        selected = best_first(rated, self.cfg.metric)[: self.cfg.m_selected]  # 15
        return selected, [p for p, _ in rated]  # 16

    async def rate(self, peers: Sequence[PeerId]) -> None:
        scores, models = await rate_peers(self.cfg, self.model, peers)
        self.told |= {p: scores.get(p) for p in peers}
        self.here |= models

    async def fetch(self, selected: Sequence[PeerId]) -> Sequence[Offer]:
        here, self.here, self.told = self.here, {}, {}
        missing = [p for p in selected if p not in here]
        return [*(here[p] for p in selected if p in here), *(await Fetch(missing) if missing else ())]
