"""`dpsgd`: average with the same neighbours in every round. Line numbers refer to the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, model_validator

from pfl_node.errors import nearest
from pfl_node.policies.edge_list import Edges, read_edges
from pfl_node.policies.lockstep import Lockstep, Near
from pfl_node.policies.topology import Graph, rings
from pfl_node.steps import Average, Peers, Record
from pfl_node.types import Offer, PeerId

DRAWN = ("ring", "regular")


class Dpsgd(Lockstep):
    """D-PSGD, decentralized parallel SGD on a fixed graph (Lian et al. 2017, Algorithm 1)."""

    class Config(Lockstep.Config):
        graph: str = Field("regular", description="ring, regular, or a file with an edge per line (ids or places)")
        degree: int = Field(4, ge=1, description="neighbours of a node in the regular graph")
        _edges: Edges | None = PrivateAttr(None)

        @model_validator(mode="after")
        def _read(self) -> Dpsgd.Config:
            if self.graph not in DRAWN:
                if not Path(self.graph).exists():
                    raise ValueError(f"graph = {self.graph!r} is not a file; {nearest(self.graph, DRAWN)}")
                self._edges = read_edges(self.graph)
            return self

        @property
        def usual_degree(self) -> int:
            if self._edges:
                return min(map(len, self._edges.near.values()))
            return 2 if self.graph == "ring" else self.degree

        def graph_of(self, alive: Set[PeerId], met: Set[PeerId], seed: int) -> Graph:
            if self._edges:
                return self._edges.graph(sorted(met))
            return rings(tuple(sorted(alive)), self.usual_degree, seed)

    keeps: ClassVar[tuple[str, ...]] = ("met",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.met = {self.me}  # a dead node keeps its position in the sorted list
        self.graph: Graph = {}

    async def near(self, t: int) -> Near:
        # paper: static membership; here: generated graphs close around a missing node, because nodes fail
        alive = {self.me, *await Peers()}
        self.met |= alive
        self.graph = self.cfg.graph_of(alive, self.met, self.seed)
        near = [p for p in self.graph.get(self.me, ()) if p in alive]
        if not near and len(alive) > 1:
            await Record("no_neighbours", {"round": t, "graph": self.cfg.graph})
        return Near(near, near)

    async def mix(self, t: int, near: Near) -> None:
        # paper: average (4), then a gradient step (5); here: training, then the average, as in Trinca 2024, 2.2,
        # because one exchange then serves any number of steps
        offers = await self.exchange(t, near, self.model)
        w = self.weights(near, offers)
        self.model = await Average(self.model, [o.model for o in offers], weights=w, own=1 - sum(w))  # 4

    def weights(self, near: Near, offers: Sequence[Offer]) -> list[float]:
        mine = max(len(self.graph.get(self.me, ())), len(near.of), len(offers))  # with late ones of old neighbours
        return [metropolis_hastings(mine, len(self.graph.get(o.sender, ()))) for o in offers]


def metropolis_hastings(d_i: int, d_j: int) -> float:
    """The weight of an edge between nodes of these degrees. A node keeps the remaining weight, including that of
    models that did not arrive, so the weights of each node sum to 1 and are symmetric."""
    return 1 / (1 + max(d_i, d_j))
