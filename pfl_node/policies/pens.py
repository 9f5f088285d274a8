"""`pens`: find the peers whose data resemble mine. Line numbers refer to the paper's Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from pfl_node.policies.gossip import Gossip
from pfl_node.policies.neighbours import FindsNeighbours
from pfl_node.policies.rating import METRIC, SCORED, Metric, Rating, Scored, best_first, rate
from pfl_node.steps import Peers
from pfl_node.types import Offer, PeerId


class Pens(FindsNeighbours, Gossip):
    """PENS, performance-based neighbour selection (Onoszko et al. 2021, Algorithm 2, then Algorithm 1)."""

    class Config(Gossip.Config, Rating):
        n_sampled: int = Field(10, ge=1, description="step 1: models to wait for before the best are selected")
        m: int = Field(2, ge=1, description="step 1: how many of the n_sampled models are merged")
        T: int = Field(200, ge=1, description="step 1: selections before the neighbours are chosen")
        metric: Metric = Field("loss", description=METRIC)
        scored: Scored = Field("mine", description=SCORED)

        @model_validator(mode="after")
        def _m_of_n(self) -> Pens.Config:
            if self.m > self.n_sampled:
                raise ValueError(f"m = {self.m} is more than n_sampled = {self.n_sampled}")
            return self

    asks = True

    keeps = (*Gossip.keeps, *FindsNeighbours.keeps)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.alone = False  # all my neighbours are gone, but other peers are present

    async def select(self, saved: Sequence[Offer]) -> Sequence[Offer]:
        # paper: in step 2 n_peers models of neighbours; here: a stranger's counts, too, and is dropped (so fewer
        # are merged), because a node that only strangers send to would wait for ever
        if self.neighbours is not None and not self.alone:  # step 2: Algorithm 1 among the neighbours
            return [o for o in saved if o.sender in self.neighbours]
        # paper: each on arrival; here: all when n_sampled have arrived, because one sample then serves for all
        rated = await rate(self.cfg, self.model, saved)  # 10
        best = best_first(rated, self.cfg.metric)[: self.cfg.m]  # 13
        if self.neighbours is None:
            self.count([o.sender for o, _ in rated], [o.sender for o in best])
            if self.selections >= self.cfg.T:
                await self.choose_neighbours(at_least=self.cfg.m)  # 7, 18-23
        return best

    async def recipients(self) -> Sequence[PeerId]:  # 4
        peers = await Peers()
        self.alone = self.neighbours_gone(peers)
        return [p for p in peers if self.alone or p not in self.strangers]  # includes new nodes

    @property
    def models_per_round(self) -> int:  # 12
        return int(self.cfg.n_sampled if self.neighbours is None or self.alone else self.cfg.n_peers)
