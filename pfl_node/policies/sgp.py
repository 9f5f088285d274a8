"""`sgp`: stochastic gradient push, averaging over links that have one direction. Line numbers refer to the paper's
Algorithm 1."""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar, Literal

from pydantic import Field

from pfl_node.aggregate import bounded
from pfl_node.policies.lockstep import Lockstep, Near
from pfl_node.policies.topology import exponential, recipients, senders
from pfl_node.steps import Average, Gather, Peers, Send
from pfl_node.types import Offer, Part

LEAST = 1e-9  # lower bound of w: a node that sends and never receives halves it in each round


class Sgp(Lockstep):
    """Stochastic gradient push (Assran et al. 2019, Algorithm 1)."""

    class Config(Lockstep.Config):
        graph: Literal["exponential", "random"] = Field(
            "exponential", description="recipients: 1, 2, 4, ... places ahead in turn, or random peers"
        )
        degree: int = Field(1, ge=1, description="recipients of a node in a round")

    keeps = ("w",)
    part: ClassVar[Part] = "model"  # the part that is shared

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.w = 1.0  # push-sum weight: the mean over all nodes is 1 while no weight is lost

    async def near(self, t: int) -> Near:
        peers, drawn = await Peers(), {"degree": self.cfg.degree, "seed": self.seed, "round": t}
        if self.cfg.graph == "random":
            return Near(recipients(self.me, peers, **drawn), senders(self.me, peers, **drawn))
        # paper: with two recipients, a round repeats a distance of the last one; here: both are new, because all
        # distances are then used sooner
        return Near(*exponential(self.me, peers, degree=self.cfg.degree, round=t))

    # paper: x and w are sent, and one gradient step at z changes x (3-4); here: z = x / w and w are sent, and z is
    # trained, because a small w would otherwise multiply the step; x = w z, so that the sums are the same
    async def mix(self, t: int, near: Near) -> None:
        z, p = self.model.of(self.part), 1 / (1 + len(near.to))
        # 5: the share p of x and of w; whole, because w holds for all numbers of the message
        took = await Send(near.to, z, round=t, notes={"w": p * self.w}, whole=True)
        # paper: every message arrives; here: the sender keeps the shares that no recipient accepted, because the
        # sums of x and of w over all nodes must not change
        own = self.w * (1 - p * len(set(took) & set(near.to)))
        offers = await Gather(near.of, t, others=True)
        w = [pushed(o) for o in offers]
        w = bounded(w, self.claim, own) if w and self.claim is not None else w
        z = await Average(z, [o.model for o in offers], w, own)  # 6 and 8: sum p x / sum p w
        self.model = z if self.part == "model" else z + self.model.head
        self.w = max(own + sum(w), LEAST)  # 7

    @property
    def others(self) -> bool:
        return True


def pushed(offer: Offer) -> float:
    """The weight that came with a model; an invalid weight counts as 0."""
    w = offer.notes.get("w", 0.0)
    return w if isfinite(w) and w > 0 else 0.0
