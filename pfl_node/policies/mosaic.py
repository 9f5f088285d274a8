"""`mosaic`: epidemic learning with the model in K fragments, each exchanged over a graph of its own."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pfl_node.policies.lockstep import Lockstep, Near
from pfl_node.policies.topology import neighbours
from pfl_node.seeds import seed_from
from pfl_node.steps import Average, Gather, Peers, Send
from pfl_node.types import PeerId


class Mosaic(Lockstep):
    """Mosaic learning, decentralized learning with model fragmentation (Biswas et al. 2026)."""

    class Config(Lockstep.Config):
        K: int = Field(16, ge=1, description="fragments of the model; 1: el")
        degree: int = Field(4, ge=1, description="neighbours of a node in the graph of each fragment")

    fragments = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.shared: dict[PeerId, list[int]] = {}  # my neighbours, with the fragments in whose graphs they are

    async def near(self, t: int) -> Near:
        # paper: fragments are disseminated independently; here: both ends derive a regular graph for each, because
        # a node then waits only for fragments that are sent, and sends and receives as much as in el
        peers, self.shared = await Peers(), {}
        for f in range(self.cfg.K):
            seed = seed_from(self.seed, "fragment", f) if f else self.seed  # of fragment 0: el's
            for p in neighbours(self.me, peers, degree=self.cfg.degree, seed=seed, round=t):
                self.shared.setdefault(p, []).append(f)
        return Near(sorted(self.shared), sorted(self.shared))

    async def mix(self, t: int, near: Near) -> None:
        for p in near.to:  # one message with all fragments for this peer
            await Send([p], self.model.fragment(*self.shared[p], of=self.cfg.K), round=t)
        offers = await Gather(near.of, t)
        self.model = await Average(
            self.model, [o.model for o in offers]
        )  # each number over the models that have it

    async def all_reduce(self, t: int, everybody: Near) -> None:
        self.shared = {p: list(range(self.cfg.K)) for p in everybody.to}
        await super().all_reduce(t, everybody)
