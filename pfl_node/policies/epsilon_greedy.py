"""`epsilon_greedy`: greedy, with some selected peers replaced by random ones. Line numbers refer to the thesis'
Algorithm 3."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from pfl_node.policies.greedy import Greedy
from pfl_node.types import PeerId


class EpsilonGreedy(Greedy):
    """Epsilon-greedy (Karlsson & Onoszko 2021, Algorithm 3)."""

    class Config(Greedy.Config):
        eps: float = Field(0.5, ge=0, le=1, description="initial probability that a selected peer is swapped")
        decay: float = Field(1.0, gt=0, le=1, description="lambda: factor on eps after every round")

    async def select(self) -> Sequence[PeerId]:
        # paper: all sampled peers; here: those that answered, because the others serve no model either
        selected, sampled = await self.greedily()  # 9-15
        t = self.round + 1  # 3: counts from 1
        n_swap = sum(self.rng.random() < self.cfg.decay**t * self.cfg.eps for _ in selected)  # 16
        swap = self.rng.sample(selected, n_swap)  # 17
        population = [*(p for p in sampled if p not in selected), *swap]  # 18
        new = self.rng.sample(population, n_swap)  # 19
        return [*(p for p in selected if p not in swap), *new]  # 20
