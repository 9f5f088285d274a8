"""Policies that each violate one rule of the contract."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np

from pfl_node.model import Model
from pfl_node.steps import Fetch, Peers, Receive, Record, Report, Send, Sleep, Train
from pfl_node.types import Offer
from tests.unit.testing.good_policy import Good


class NeedsOne(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        return await Fetch([(await Peers())[0]])


class NeedsThree(Good):
    """Waits forever."""

    async def mix(self, t: int) -> tuple[Offer, ...]:
        got: tuple[Offer, ...] = ()
        while len(got) < 3:
            got += await Receive(3)
        return got


class Spins(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        while not (peers := await Peers()):
            await Sleep(0.0)
        return await Fetch(peers)


class Leaves(Good):
    async def main(self) -> None:
        await Report(0, self.model)


class Backwards(Good):
    async def main(self) -> None:
        for t in self.remaining():
            await Report(7 - t, self.model)


class Diverges(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.model = Model(self.model.layout, self.model.vector * np.float32(np.nan))
        return ()


class CorrectsParts(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.model = await Train(self.model, correction=self.model.core)
        return ()


class Misspells(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.model = await Train(self.model, penalty=f"{__file__}:distance")
        return ()


class SendsParts(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        await Send(await Peers(), self.model.core, round=t)
        return ()


class Dices(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        await Record("diced", {"eyes": random.random()})
        return await super().mix(t)


class Vandal(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        for offer in (offers := await super().mix(t)):
            vector = offer.model.over(self.model).vector
            vector.flags.writeable = True
            vector[:] = 0
        return offers


class Trusts(Good):
    """Uses a number from a peer as an index without a check."""

    async def mix(self, t: int) -> tuple[Offer, ...]:
        offers = await super().mix(t)
        for offer in offers:
            self.seen[offer.tag] += 1
        return offers


class Forgets(Good):
    keeps = ()

    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.model = Model(self.model.layout, self.model.vector + np.float32(len(self.seen)))
        return await super().mix(t)


class KeepsTooMuch(Good):
    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.seen = [self.rng]  # type: ignore[list-item]
        return await super().mix(t)


class KeepsStrangeThings(Good):
    keeps = ("counts",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.counts: defaultdict[str, int] = defaultdict(int)

    async def mix(self, t: int) -> tuple[Offer, ...]:
        for peer in await Peers():
            self.counts[peer] += 1
        return ()


class Lives(Good):
    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "kept": {"seen": self.seen}}


class ForgetsOthers(Good):
    """Its training depends on the peers it met, which a checkpoint does not contain."""

    keeps = ()

    async def mix(self, t: int) -> tuple[Offer, ...]:
        self.model = Model(self.model.layout, self.model.vector + np.float32(sum(self.seen)))
        return await super().mix(t)


class ForgetsItsMessages(Good):
    """Its messages depend on how many it sent, which a checkpoint does not contain."""

    keeps = ()

    async def mix(self, t: int) -> tuple[Offer, ...]:
        await Send(await Peers(), self.model, round=t, tag=len(self.seen))
        return ()


class Silent(Good):
    """Trains without Report."""

    takes = ()

    async def main(self) -> None:
        for _ in self.remaining():
            self.model = await Train(self.model)
