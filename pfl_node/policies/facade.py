"""`facade`: one core, k heads, each node trains the head that suits its data. The numbers are lines of the
thesis' Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import by_loss
from pfl_node.policies.el import El
from pfl_node.steps import Average, Fresh, Peers, Report, Score, Train
from pfl_node.types import Offer


class Facade(El):
    """FACADE, fair and clustered decentralized learning (Trinca 2024, Algorithm 1)."""

    class Config(El.Config):
        k: int = Field(2, ge=1, description="heads; about as many as there are clusters")
        warmup: int = Field(10, ge=0, description="first rounds, of plain EL; 0: each head has a start of its own")
        samples: int = Field(80, ge=1, description="own samples that each head is scored on")
        all_reduce: bool = Field(True, description="after the last round, one exchange with everybody")

    keeps = ("heads", "j")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.heads: list[Model] = []
        self.j = 0  # my head

    async def main(self) -> None:
        for t in self.remaining():  # 1
            if t < self.cfg.warmup:
                await self.epidemic(t)
                continue
            await self.have_heads()
            self.j = await self.choose(self.cfg.samples)  # 3
            self.model = await Train(self.model.core + self.heads[self.j])  # 4
            self.heads[self.j] = self.model.head
            await self.merge(await self.exchange(t, await self.near(t), tag=self.j))  # 5-7
            await Report(t, self.model, {"head": self.j})
        if self.all_reduces:  # section 4.1.3
            await self.have_heads()
            await self.merge(await self.exchange(self.round, await Peers(), tag=self.j))
            self.j = await self.choose(None)
            self.model = self.model.core + self.heads[self.j]
            await Report(self.round, self.model, {"head": self.j})
            self.round += 1

    async def have_heads(self) -> None:
        """After a warm-up all k begin equal, also on a node that joins later; else each has its own start."""
        if len(self.heads) == self.cfg.k:
            return
        self.j = 0
        if self.cfg.warmup:
            self.heads = [self.model.head] * self.cfg.k
        else:
            self.heads = [await Fresh("head", seed=j) for j in range(self.cfg.k)]

    async def choose(self, samples: int | None) -> int:
        """The head with the lowest loss on my training data."""
        # paper: one data set for all; here: a sample for each, and lots for a tie, because equal heads must part
        order = self.rng.sample(range(self.cfg.k), self.cfg.k)
        models = [self.model.core + self.heads[j] for j in order]
        scores = await Score(models, samples=samples, own_sample_each=samples is not None)
        return order[by_loss(scores)[0]]

    async def merge(self, offers: Sequence[Offer]) -> None:
        core = await Average(self.model.core, [o.model.core for o in offers])  # 8
        for i in range(self.cfg.k):  # 9
            if same := [o.model.head for o in offers if o.tag == i]:  # 10
                self.heads[i] = await Average(self.heads[i], same)  # 11
        self.model = core + self.heads[self.j]
