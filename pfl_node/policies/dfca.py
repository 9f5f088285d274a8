"""`dfca`: k models; each node trains the one that fits its data and merges the models of peers as they arrive.
Numbers in parentheses are the paper's equations, steps those of its Algorithm 1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.rating import best_first
from pfl_node.steps import Average, Fresh, Peers, Report, Score, Send, Train
from pfl_node.types import Offer


class Dfca(Policy):
    """DFCA, decentralized federated clustering (Kirch et al. 2025, Algorithm 1), after IFCA (Ghosh et al.)."""

    class Config(PolicyConfig):
        k: int = Field(2, ge=1, description="number of models of a node; about the number of clusters")
        degree: int = Field(4, ge=1, description="random peers that a node sends its model to in a round")
        init: Literal["global", "local"] = Field(
            "global", description="the k initial models: the same on all nodes (DFCA-GI), or own ones (DFCA-LI)"
        )
        samples: int | None = Field(None, ge=1, description="own samples that the models are scored on; none: all")

    asks, serves = False, ()
    keeps = ("models", "j", "arrived")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.models, self.j = list[Model](), 0  # I train the j-th
        self.arrived: dict[int, tuple[Model, int]] = {}  # by cluster: the mean of the models since my last merge

    # paper: shared rounds on a fixed random graph (its code: random pairs swap models), and step 3 after step 2;
    # here: a node sends to random peers at its own pace, and takes step 3 with what has arrived before its next
    # step 1, because no step then needs a peer's answer; it reports what it trained
    async def main(self) -> None:
        while len(self.models) < self.cfg.k:
            self.models.append(await Fresh(seed=len(self.models), common=self.cfg.init == "global"))
        self.models, self.j = self.models[: self.cfg.k], min(self.j, self.cfg.k - 1)  # k may have changed
        for t in self.remaining():
            await self.merge()  # step 3, of the last round
            scores = await Score(self.models, samples=self.cfg.samples)
            self.j = best_first(enumerate(scores), "loss")[0]  # step 1 (4)
            self.model = self.models[self.j] = await Train(self.models[self.j], slot=self.j)  # step 2 (5)
            peers = await Peers()
            to = self.rng.sample(peers, min(self.cfg.degree, len(peers)))
            await Send(to, self.model, tag=self.j)  # the one that it trained, and no other
            await Report(t, self.model, {"head": self.j, "losses": [e.loss for e in scores]})

    async def on_model(self, offer: Offer) -> None:
        """The running average (8), without my model: one per cluster is stored, however many arrive."""
        if offer.tag >= self.cfg.k or not offer.model.is_finite():
            return
        came = offer.model.over(self.models[offer.tag] if offer.tag < len(self.models) else self.model)
        so_far, n = self.arrived.pop(offer.tag, (came, 0))
        running = await Average(so_far, [came], own=float(n)) if n else came
        self.arrived[offer.tag] = running, n + 1

    async def merge(self) -> None:
        # paper: averages each arrival with my model at once (8), its code with a fixed weight; here: all count
        # alike, as in (7) and (8), but between two trainings, because a training in progress would overwrite what
        # arrived
        arrived, self.arrived = self.arrived, {}  # first, because more may arrive during an Average
        for j, (running, n) in sorted(row for row in arrived.items() if row[0] < self.cfg.k):
            self.models[j] = await Average(self.models[j], [running], [float(n)])
        self.model = self.models[self.j]
