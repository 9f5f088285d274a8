"""`oracle`: random among the peers of the true cluster, which a lab provides. The upper bound of table 3.6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Fetch, Peers, Record
from pfl_node.types import PeerId


class Oracle(RandomPull):
    """Oracle: Random within the true cluster (Karlsson & Onoszko 2021, table 3.6); only a lab can run it."""

    oracular = True
    keeps = (*RandomPull.keeps, "clusters")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.tag = self.truth or 0  # a task without clusters has a single one
        self.clusters: dict[PeerId, int] = {}  # as reported by the peers

    # paper: all clusters are known; here: each node knows its own and asks the others, because no node knows all
    async def population(self) -> Sequence[PeerId]:
        peers = await Peers()
        before = self.alike()
        if unknown := [p for p in peers if p not in self.clusters]:
            self.clusters |= {o.sender: o.tag for o in await Fetch(unknown, part="head")}
        if (alike := self.alike()) != before:
            await Record("neighbours", {"ids": alike})
        return [p for p in peers if p in alike]

    def alike(self) -> list[PeerId]:
        return sorted(p for p, cluster in self.clusters.items() if cluster == self.tag)
