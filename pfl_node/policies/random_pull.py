"""`random`: pull the models of random peers, average, train. Line numbers refer to the thesis' Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.steps import Average, Fetch, Linger, Peers, Publish, Report, Train
from pfl_node.types import Offer, Part, PeerId


class RandomPull(EarlyStopping):
    """Random (Karlsson & Onoszko 2021, Algorithm 1)."""

    class Config(EarlyStopping.Config):
        m_selected: int = Field(20, ge=1, description="peers whose models are averaged with mine in a round")

    takes: ClassVar[tuple[Part, ...]] = ()
    serves = Policy.serves
    tag = 0  # metadata of my model

    # paper: synchronous rounds; here: each node at its own pace, because fetching the current model of a peer
    # requires no waiting
    async def main(self) -> None:
        if self.round == 0:
            self.model = await self.train()  # 2
        await Publish(self.model, self.round, tag=self.tag)  # peers may fetch it during my first round
        for t in self.remaining():  # 3
            selected = await self.select()  # 4
            offers = await self.average(selected)  # 5
            self.model = await self.train()  # 6
            await self.check_stop()
            await Report(t, self.model, {"from": [o.sender for o in offers]}, tag=self.tag)
        await Linger()  # section 3.4: it still evaluates the models of others and serves its own

    async def select(self) -> Sequence[PeerId]:
        return self.sample(await self.population(), self.cfg.m_selected)

    async def average(self, selected: Sequence[PeerId]) -> Sequence[Offer]:  # 7
        offers = await self.fetch(selected)  # 8
        self.model = await Average(self.model, [o.model for o in offers])  # 9-10
        return offers

    async def train(self) -> Model:  # 12
        return await Train(self.model)

    async def population(self) -> Sequence[PeerId]:
        """The peers to select from."""
        return await Peers()

    async def fetch(self, selected: Sequence[PeerId]) -> Sequence[Offer]:
        return await Fetch(selected)

    def sample(self, peers: Sequence[PeerId], m: int) -> list[PeerId]:
        """m random peers, or all if there are fewer."""
        return self.rng.sample(peers, min(m, len(peers)))
