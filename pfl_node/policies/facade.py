"""`facade`: one core and k heads; each node trains the head that fits its data. Numbers: lines of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Near
from pfl_node.policies.rating import best_first
from pfl_node.steps import Average, Fetch, Fresh, Report, Score, Train
from pfl_node.types import Offer, Part


class Facade(El):
    """FACADE, fair and clustered decentralized learning (Trinca 2024, Algorithm 1)."""

    class Config(El.Config):
        k: int = Field(2, ge=1, description="number of heads; about the number of clusters")
        warmup: int = Field(10, ge=0, description="initial rounds of plain EL; 0: heads initialised separately")
        samples: int = Field(80, ge=1, description="own samples that heads are scored on")
        own_samples: bool = Field(False, description="draw new samples for each head, as the thesis' code does")
        all_reduce: bool = Field(True, description="after the last round, one exchange with all nodes")

    keeps, serves = ("heads", "j"), ("model", "core", "head")
    part: ClassVar[Part] = "head"  # the part of which there are k

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.heads, self.j = list[Model](), 0  # mine is the j-th

    async def step(self, t: int) -> None:  # 1
        if t < self.cfg.warmup:
            return await super().step(t)
        await self.have_heads(t)
        self.j, losses = await self.choose(self.cfg.samples, self.cfg.own_samples)  # 3
        self.model = await Train(self.whole(self.j), slot=self.j)  # 4
        self.heads[self.j] = self.model.of(self.part)
        await self.merge(await self.exchange(t, await self.near(t), self.model, tag=self.j))  # 5-7
        return await Report(t, self.model, {"head": self.j, "losses": losses}, tag=self.j)

    async def all_reduce(self, t: int, everybody: Near) -> None:  # section 4.1.3
        await self.have_heads(t)
        await self.merge(await self.exchange(t, everybody, self.model, tag=self.j))
        self.j = (await self.choose(None, False))[0] if t > self.cfg.warmup else 0
        self.model = self.whole(self.j)
        await Report(t, self.model, {"head": self.j}, tag=self.j)

    async def have_heads(self, t: int) -> None:
        """Equal heads after a warm-up, else fresh ones; a late node takes its peers' heads or their mean."""
        if len(self.heads) == self.cfg.k:
            return
        self.heads, self.j = [], 0
        came = await Fetch((await self.near(t)).to, self.part, whole=True) if t > self.cfg.warmup else ()
        for i in range(self.cfg.k):
            start = self.model.of(self.part) if self.cfg.warmup else await Fresh(self.part, seed=i)
            theirs = [o.model for o in came if o.tag == i] or [o.model for o in came]
            self.heads.append(await Average(start, theirs, own=0.0) if theirs else start)

    async def choose(self, samples: int | None, each: bool) -> tuple[int, list[float]]:
        # paper: its code has a sample per head, and tests the head with the lowest test loss; here: one sample
        # of my training data for all, because noise splits clusters; in random order, so that equal heads diverge
        order = self.rng.sample(range(self.cfg.k), self.cfg.k)
        scores = await Score([self.whole(j) for j in order], samples=samples, own_sample_each=each)
        rated = dict(zip(order, scores, strict=True))
        return best_first(rated.items(), "loss")[0], [rated[j].loss for j in range(self.cfg.k)]  # figure 4.4

    async def merge(self, offers: Sequence[Offer]) -> None:
        if self.part == "head":  # 8: the core that all heads share
            self.model = await Average(self.model.core, [o.model.core for o in offers]) + self.model.head
        for i in range(self.cfg.k):  # 9
            if same := [o.model.of(self.part) for o in offers if o.tag == i]:  # 10
                self.heads[i] = await Average(self.heads[i], same)  # 11
        self.model = self.whole(self.j)

    def whole(self, i: int) -> Model:
        return self.model.core + self.heads[i]
