"""`fedfomo`: fetch models of peers and move towards those that do better on my validation data."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Fetch, Fresh, Linger, Peers, Publish, Report, Score, Train
from pfl_node.types import PeerId


class FedFomo(Policy):
    """FedFomo, first-order model optimisation (Zhang et al. 2021)."""

    class Config(PolicyConfig):
        # paper: in its code, the client's own model is one of 5, and epsilon is 0.25 in the first round with
        # peers; here: 5 of peers, and 0.3, because the own model costs no message and the first of these rounds is
        # round 0
        M: int = Field(5, ge=1, description="peers whose models are fetched in a round")
        epsilon: float = Field(0.3, ge=0, le=1, description="share of random peers among them in the first round")
        decay: float = Field(0.05, ge=0, le=1, description="decrease of epsilon in each round")

    takes, asks = (), False
    keeps = ("P", "before")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.P: dict[PeerId, float] = {}  # the sum of the weights of each peer so far
        self.before = self.model  # my model before its last training

    # paper: a server has all models and samples for a client, and in its code adds the averages of clusters and of
    # all; here: each node fetches from peers, because there is no server
    async def main(self) -> None:
        if self.round == 0:
            self.before = await Fresh(common=True)
            self.model = await Train(self.before)
        await Publish(self.model, self.round)
        for t in self.remaining():
            offers = await Fetch(self.choose(await Peers(), t))
            candidates = [self.model, *(o.model.over(self.model) for o in offers)]
            old, *new = await Score([self.before, *candidates], split="val")
            own, *w = [weight(old.loss - e.loss, self.before, m) for e, m in zip(new, candidates, strict=True)]
            # paper: its code adds signed weights, divided by their sum; here: those of the average, because a peer
            # that did not help may help later, like one that was never asked
            for o, w_n in zip(offers, w, strict=True):
                self.P[o.sender] = self.P.get(o.sender, 0.0) + w_n
            # paper: its code goes back to `before` if no model is better; here: it keeps what it trained, because
            # few validation samples would otherwise end its training
            self.before = await Average(self.model, candidates[1:], w, own)
            self.model = await Train(self.before)
            await Report(t, self.model, {"from": [o.sender for o, w_n in zip(offers, w, strict=True) if w_n]})
        await Linger()

    def choose(self, peers: Sequence[PeerId], t: int) -> list[PeerId]:
        """M peers: those with the highest sums of weights, but with probability epsilon a random one."""
        left, chosen = sorted(peers, key=lambda p: (-self.P.get(p, 0.0), self.rng.random())), list[PeerId]()
        while left and len(chosen) < self.cfg.M:
            chance = self.rng.random() < self.cfg.epsilon - self.cfg.decay * t
            chosen.append(left.pop(self.rng.randrange(len(left)) if chance else 0))
        return chosen


def weight(gain: float, before: Model, model: Model) -> float:
    """The loss that this model saves, per unit of distance; 0 if it saves none."""
    # paper: its code takes the L1 norm by default; here: the Euclidean one, because that is the usual distance
    distance = float(np.linalg.norm(model.vector - before.vector))
    return max(gain, 0.0) / distance if isfinite(gain) and isfinite(distance) and distance > 0 else 0.0
