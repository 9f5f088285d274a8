"""`pens_pull`: PENS in its first form, in which peers score my model on their data. Line numbers refer to the
thesis' Algorithm 4."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.greedy import Greedy
from pfl_node.policies.neighbours import FindsNeighbours
from pfl_node.steps import Peers, Train
from pfl_node.types import PeerId


class PensPull(FindsNeighbours, Greedy):
    """PENS with evaluation requests (Karlsson & Onoszko 2021, Algorithm 4)."""

    class Config(Greedy.Config):
        n_samplings: int = Field(10, ge=1, description="step 1: greedy selections in a round")
        selection_rounds: int = Field(20, ge=1, description="step 1: rounds before the neighbours are chosen")
        selection_epochs: float | None = Field(
            None, gt=0, description="step 1: local epochs (10 in the thesis, 3 in step 2); none: as in step 2"
        )
        n_peers: int = Field(20, ge=1, description="step 2: neighbours whose models are averaged with mine")

    keeps = (*Greedy.keeps, *FindsNeighbours.keeps)
    silent = False  # no peer answered in the last search, although some did before

    async def select(self) -> Sequence[PeerId]:
        if self.neighbours is None:
            return await self.search()
        peers = await Peers()
        if self.neighbours_gone(peers):
            return await super().select()
        return self.sample([p for p in peers if p in self.neighbours], self.cfg.n_peers)  # 16

    async def search(self) -> Sequence[PeerId]:
        # paper: each sampling asks again; here: a peer once per round, because its answer would be the same
        before = self.selections
        for _ in range(self.cfg.n_samplings):  # 7
            selected, sampled = await self.greedily()  # 8
            self.count(sampled, selected)  # 9-10
        self.silent = 0 < before == self.selections and bool(await Peers())
        return selected  # 11: the last sampling, because section 3.3.2 averages once per round

    async def train(self) -> Model:
        if self.neighbours is not None:
            return await super().train()
        model = await Train(self.model, epochs=self.cfg.selection_epochs)  # 5, 12
        # paper: T = |history| / |distinct sampled| for all; here: the expectation for each peer (see `count`),
        # because peers join and leave and are not sampled equally often
        # here: also when no peer answers any more, because peers may have a budget (`privacy.oracle`)
        if self.silent or self.selections >= self.cfg.selection_rounds * self.cfg.n_samplings:
            await self.choose_neighbours(at_least=self.cfg.m_selected)  # 13
        return model
