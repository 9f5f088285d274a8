"""`choco`: D-PSGD with compressed messages; each node has approximations x_hat of its neighbours' models. Line
numbers refer to the paper's Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from pfl_node.model import Model, PartialModel
from pfl_node.policies.dpsgd import Dpsgd, metropolis_hastings
from pfl_node.policies.lockstep import Near
from pfl_node.steps import Average, Gather, Send
from pfl_node.types import Offer, PeerId


class Choco(Dpsgd):
    """CHOCO-SGD with top-k compression (Koloskova, Stich & Jaggi 2019, Algorithm 2)."""

    class Config(Dpsgd.Config):
        share: float = Field(
            0.2, gt=0, le=1, description="share of the numbers that are sent: those that differ most"
        )
        gamma: float = Field(0.5, gt=0, le=1, description="consensus step size; smaller for a smaller share")

    averages = False
    keeps = (*Dpsgd.keeps, "mine", "version", "theirs", "synced")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.mine, self.version = self.model, 0  # x_hat_i, and how often it was changed
        self.theirs: dict[PeerId, tuple[int, Model]] = {}  # x_hat_j with its version
        self.synced: set[PeerId] = set()  # neighbours that have my x_hat_i

    # paper: x_hat is 0 at first, and no message is lost; here: a neighbour that has no x_hat_i, or missed a change
    # of it, gets it as a whole, because a wrong x_hat_i would pull its model to a wrong place
    # paper: after a gradient step (2-3) x moves (4), then q is sent (5-8); here: after a training q is
    # sent, then x moves, because x then uses the messages of this round
    async def mix(self, t: int, near: Near) -> None:
        change = np.abs(self.model.vector - self.mine.vector)
        k = max(1, round(self.cfg.share * change.size))
        q = self.model.sparse(np.argpartition(change, change.size - k)[-k:])  # 5: Q(x - x_hat), as new values
        self.mine, self.version = q.over(self.mine), self.version + 1  # 8 for j = i
        partly = [p for p in near.to if p in self.synced]
        about: dict[str, Any] = {"round": t, "tag": self.version, "notes": self.lacking(near.of)}
        took = (
            await Send(partly, q, **about),
            await Send([p for p in near.to if p not in partly], self.mine, whole=True, **about),
        )
        self.synced = {*took[0], *took[1]}  # 7
        offers = await Gather(near.of, t)
        self.synced -= {o.sender for o in offers if self.me in o.notes and o.sender in partly}
        self.update(offers, near.of)
        degree = max(len(self.graph.get(self.me, ())), len(near.of))
        w = [self.cfg.gamma * metropolis_hastings(degree, len(self.graph.get(j, ()))) for j in self.theirs]
        x, x_hat = self.model.vector, self.mine.vector
        others = [Model(self.model.layout, x + (m.vector - x_hat), m) for _, m in self.theirs.values()]
        self.model = await Average(self.model, others, w, own=1 - sum(w))  # 4: x + gamma sum w (x_hat_j - x_hat_i)

    def update(self, offers: Sequence[Offer], near: Sequence[PeerId]) -> None:
        """x_hat_j += q_j (8), if q_j is the change that follows my version of x_hat_j."""
        for o in sorted(offers, key=lambda o: o.tag):
            version, x_hat = self.theirs.pop(o.sender, (0, None))
            if not isinstance(o.model, PartialModel):
                self.theirs[o.sender] = o.tag, o.model
            elif x_hat is not None and o.tag == version + 1:
                self.theirs[o.sender] = o.tag, o.model.over(x_hat)
        self.theirs = {j: self.theirs[j] for j in near if j in self.theirs}

    def lacking(self, near: Sequence[PeerId]) -> dict[str, float]:
        """The neighbours that have to send me their x_hat as a whole."""
        return {j: 1.0 for j in near if j not in self.theirs}
