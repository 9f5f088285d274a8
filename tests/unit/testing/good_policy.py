"""A policy that meets the contract."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Gather, Peers, Report, Send, Train
from pfl_node.types import Offer


class Good(Policy):
    """All nodes average with all."""

    class Config(PolicyConfig):
        m: int = Field(500, ge=1)

    lockstep = True
    keeps: ClassVar[tuple[str, ...]] = ("seen",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.seen: list[int] = []

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            self.seen.append(len(await self.mix(t)))
            await Report(t, self.model)

    async def mix(self, t: int) -> tuple[Offer, ...]:
        peers = await Peers()
        await Send(peers[: self.cfg.m], self.model, round=t)
        offers = await Gather(peers, t)
        self.model = await Average(self.model, [o.model for o in offers])
        return offers
