"""`bandit`: some models come from random peers, the others from peers that helped before; my validation loss
decides how many of them are averaged. Numbers: steps in docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.rating import best_first
from pfl_node.policies.topology import neighbours
from pfl_node.steps import Average, Fetch, Fresh, Gather, Linger, Peers, Publish, Report, Score, Send, Train
from pfl_node.types import Eval, Offer, PeerId

NEW, WORST = (1.0, 1.0), 1e9  # the prior of an unknown peer; the loss of a model whose loss is not finite


class Bandit(Policy):
    """Chooses peers by Thompson sampling and the group size by validation loss (this project, 2026)."""

    class Config(PolicyConfig):
        explore: int = Field(2, ge=1, description="models exchanged with random peers in a round")
        exploit: int = Field(2, ge=0, description="models fetched from peers that helped before")
        memory: float = Field(0.95, ge=0, le=1, description="factor on the counts of each peer, per round")
        score_samples: int = Field(100, ge=1, description="own samples to score models on, at most")
        least: float = Field(0.05, ge=0, le=1, description="probability below which an average is not used")

    lockstep = pulls = late = True
    asks, serves, keeps = False, ("model",), ("start", "belief")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.start: Model | None = None  # where the next training starts; self.model is the one I use and report
        self.belief = dict[PeerId, tuple[float, float]]()  # 1 + how often a peer's model helped, and did not

    async def main(self) -> None:
        if self.start is None:
            self.start = await Fresh(common=True)
        for t in self.remaining():
            v = await Train(self.start)  # 1
            await Publish(v, t)
            self.start, self.model = await self.average(v, await self.receive(v, t))
            await Report(t, self.model, publish=False)  # peers fetch v
        await Linger()

    async def receive(self, v: Model, t: int) -> list[Offer]:
        near = neighbours(self.me, await Peers(), degree=self.cfg.explore, seed=self.seed, round=t)
        await Send(near, v, round=t)
        exchanged = await Gather(near, t)  # 2
        had = {*near, *(o.sender for o in exchanged)}  # a late model is of a neighbour of an earlier round
        drawn = {j: self.rng.betavariate(*self.belief.get(j, NEW)) for j in await Peers() if j not in had}
        order = {j: self.rng.random() if drawn[j] > 0.5 else 2 - drawn[j] for j in drawn}
        return [*exchanged, *await Fetch(sorted(order, key=order.__getitem__)[: self.cfg.exploit])]  # 3

    async def average(self, v: Model, offers: Sequence[Offer]) -> tuple[Model, Model]:
        """The next start, and the personal model."""
        if not offers:
            return v, v
        scores = await Score([o.model.over(v) for o in offers], samples=self.cfg.score_samples)
        ranked, f = best_first(zip(offers, scores, strict=True), "loss"), self.cfg.memory  # 4
        groups = [await Average(v, [o.model for o in ranked[: m + 1]]) for m in range(len(ranked))]
        alone, *tried = await Score([v, *groups], split="val", samples=self.cfg.score_samples)
        best = best_first(enumerate(tried), "loss")[0]  # 5
        p, w = probability(tried[best], alone), groups[best]
        used = best + 1 if p > self.cfg.least else 0  # 6
        self.belief = {j: (1 + f * (a - 1), 1 + f * (b - 1)) for j, (a, b) in self.belief.items()}  # 8
        for i, o in enumerate(ranked):
            a, b = self.belief.get(o.sender, NEW)
            self.belief[o.sender] = (a + 1, b) if i < used else (a, b + 1)
        return (w, v.plus(w.plus(v, -1), p)) if used else (v, v)  # 7


def probability(w: Eval, v: Eval) -> float:
    """Of w, if one of both models is the right one: the likelihoods of the samples decide."""
    loss_w, loss_v = (s.loss if isfinite(s.loss) else WORST for s in (w, v))
    return 1 / (1 + exp(max(-700.0, min(w.samples * (loss_w - loss_v), 700.0))))
