"""`pens`: find the peers whose data are like mine. The numbers are lines of the paper's Algorithm 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from pfl_node.policies.base import by_loss
from pfl_node.policies.gossip import Gossip
from pfl_node.steps import Peers, Record, Score
from pfl_node.types import Offer, PeerId


class Pens(Gossip):
    """PENS, performance-based neighbour selection (Onoszko et al. 2021, Algorithm 2, then Algorithm 1)."""

    class Config(Gossip.Config):
        n_sampled: int = Field(10, ge=1, description="step 1: models to wait for before the best are selected")
        m: int = Field(2, ge=1, description="step 1: how many of the n_sampled models are merged")
        T: int = Field(200, ge=1, description="step 1: selections before the neighbours are chosen")
        score_samples: int | None = Field(None, ge=1, description="own samples to score a model on; none: all")

        @model_validator(mode="after")
        def _m_of_n(self) -> Pens.Config:
            if self.m > self.n_sampled:
                raise ValueError(f"m = {self.m} is more than n_sampled = {self.n_sampled}")
            return self

    keeps = (*Gossip.keeps, "selections", "seen", "picked", "expected", "neighbours", "strangers")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.selections = 0
        self.seen, self.picked, self.expected = Counter[PeerId](), Counter[PeerId](), dict[PeerId, float]()
        self.neighbours: list[PeerId] | None = None  # None: step 1
        self.strangers: list[PeerId] = []  # were there when I chose, and were not chosen
        self.alone = False  # all my neighbours are gone, others are there

    async def select(self, saved: Sequence[Offer]) -> Sequence[Offer]:
        if self.neighbours is not None and not self.alone:  # step 2: Algorithm 1 among the neighbours
            return [o for o in saved if o.sender in self.neighbours]
        # paper: each on arrival; here: all at once, because a random sample is then the same for all of them
        scores = await Score([o.model for o in saved], samples=self.cfg.score_samples) if saved else ()  # 10
        best = [saved[i] for i in by_loss(scores)[: self.cfg.m]]  # 13
        if saved and self.neighbours is None:
            self.selections += 1
            self.seen.update(o.sender for o in saved)
            self.picked.update(o.sender for o in best)
            for o in saved:
                self.expected[o.sender] = self.expected.get(o.sender, 0) + len(best) / len(saved)
            if self.selections >= self.cfg.T:
                await self.select_neighbours()  # 7
        return best

    async def select_neighbours(self) -> None:  # 18
        chosen = more_than_expected(self.picked, self.expected)  # 19-23
        # paper: an empty list; here: the m most often merged with, because nobody should end up alone
        self.neighbours = chosen or sorted(self.picked, key=lambda p: (-self.picked[p], p))[: self.cfg.m]
        self.strangers = [p for p in await Peers() if p not in self.neighbours]
        counts = {"picked": self.picked, "seen": self.seen, "expected": self.expected}
        await Record("neighbours", {"ids": self.neighbours, **counts})

    async def audience(self) -> Sequence[PeerId]:  # 4
        peers = await Peers()
        self.alone = bool(peers and self.neighbours) and not set(peers) & set(self.neighbours or ())
        return [p for p in peers if self.alone or p not in self.strangers]  # newcomers too: they must find theirs

    @property
    def wanted(self) -> int:  # 12; in step 2 a stranger's model counts, or a node nobody chose would wait for ever
        return int(self.cfg.n_sampled if self.neighbours is None or self.alone else self.cfg.n_peers)


def more_than_expected(picked: Mapping[PeerId, int], expected: Mapping[PeerId, float]) -> list[PeerId]:
    """Whom I merged with more often than under a uniform choice, which is seen * m / n_sampled times."""
    return sorted(p for p in picked if picked[p] > expected[p] + 1e-9)
