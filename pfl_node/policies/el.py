"""`el`: epidemic learning. Everybody averages with the neighbours of a graph that is new every round."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Gather, Peers, Report, Send, Train
from pfl_node.topology import neighbours
from pfl_node.types import Offer, PeerId


class El(Policy):
    """Epidemic learning with a shared random regular graph (de Vos et al. 2023, EL-Oracle)."""

    class Config(PolicyConfig):
        degree: int = Field(4, ge=1, description="neighbours of a node in a round's graph")
        all_reduce: bool = Field(False, description="after the last round, one exchange with everybody")

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            await self.epidemic(t)
        if self.all_reduces:
            await self.mix(self.round, await Peers())
            await Report(self.round, self.model)
            self.round += 1

    async def epidemic(self, t: int) -> None:
        self.model = await Train(self.model)
        await self.mix(t, await self.near(t))
        await Report(t, self.model)

    async def near(self, t: int) -> Sequence[PeerId]:
        """My neighbours of the round, in the graph that everybody draws with the run's seed."""
        return neighbours(self.me, await Peers(), degree=self.cfg.degree, seed=self.seed, round=t)

    async def exchange(self, t: int, near: Sequence[PeerId], tag: int = 0) -> Sequence[Offer]:
        await Send(near, self.model, round=t, tag=tag)
        return await Gather(near, t)

    async def mix(self, t: int, near: Sequence[PeerId]) -> None:
        offers = await self.exchange(t, near)
        self.model = await Average(self.model, [o.model for o in offers])

    @property
    def all_reduces(self) -> bool:
        """It is a round of its own, number T, so that a node restarted after it does not do it again."""
        return bool(self.cfg.all_reduce) and self.round == self.rounds
