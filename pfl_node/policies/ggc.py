"""`ggc`: average with the group of peers whose average with my model has the lowest loss on my validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.grouping import double_greedy, weights
from pfl_node.steps import Average, Fetch, Fresh, Linger, Peers, Publish, Report, Train
from pfl_node.types import Offer, PeerId


class Ggc(Policy):
    """DPFL, groups from greedy graph construction (Kharrat, Canini & Horvath 2025, GGC and BGGC)."""

    class Config(PolicyConfig):
        # paper: its code has 10, the client itself among them; here: 4 others, because 4 is the degree of the
        # other policies
        B_c: int = Field(4, ge=1, description="maximum number of collaborators, and of models fetched in a round")
        search: int | None = Field(None, ge=0, description="peers to consider in the first round; none: all")

    takes, asks = (), False
    keeps = ("C",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.C: list[PeerId] | None = None  # my collaborators; None: before the search

    # paper: all clients train, then all exchange; here: each at its own pace, because Fetch does not wait
    # paper: its code searches and averages in every second round, for the first time after three trainings; here:
    # in every round, for the first time after two, because the rounds of all policies then have one average
    async def main(self) -> None:
        if self.round == 0:  # one initial model for all, because averages need it
            self.model = await Train(await Fresh(common=True))
        await Publish(self.model, self.round)
        for t in self.remaining():
            w = await Train(self.model)
            await Publish(w, t)
            group = await (self.bggc(w, await Peers()) if self.C is None else self.refine(w, await Peers()))
            self.C = [o.sender for o in group]
            own, *p = weights(self.offer(w), group, self.claim)
            self.model = await Average(w, [o.model for o in group], p, own)
            # paper: its code averages one client after the other, so that the later ones get averages of the
            # earlier ones; here: peers fetch the trained model, because the search has judged that one
            await Report(t, self.model, {"from": self.C}, publish=False)
        await Linger()

    async def bggc(self, w: Model, peers: Sequence[PeerId]) -> list[Offer]:
        """In my first round: look at all peers, with B_c models at a time."""
        many = len(peers) if self.cfg.search is None else min(self.cfg.search, len(peers))
        order, found = self.rng.sample(peers, many), list[Offer]()
        for i in range(0, many, self.cfg.B_c):
            found = await self.ggc(w, await Fetch(order[i : i + self.cfg.B_c]), found)
        return found

    async def refine(self, w: Model, peers: Sequence[PeerId]) -> list[Offer]:
        # paper: its code looks only at those that the first search found; here: my last group, and random peers in
        # the free places, because peers join and leave, and a model that did not help early may help later
        kept = [p for p in self.C or () if p in peers][: self.cfg.B_c]  # B_c may have changed
        others = [p for p in peers if p not in kept]
        tried = self.rng.sample(others, min(len(others), self.cfg.B_c - len(kept)))
        return await self.ggc(w, await Fetch([*kept, *tried]))

    async def ggc(self, w: Model, offers: Sequence[Offer], found: Sequence[Offer] = ()) -> list[Offer]:
        whole = [replace(o, model=o.model.over(w)) for o in offers]
        return await double_greedy(self.offer(w), whole, self.cfg.B_c, self.rng, self.claim, found)

    def offer(self, w: Model) -> Offer:
        return Offer(self.me, w, samples=self.samples)
