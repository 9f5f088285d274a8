"""Policies that each break one rule, to test that the checks notice."""

from __future__ import annotations

import numpy as np

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.steps import Average, Fetch, Gather, Peers, Publish, Report, Send, Sleep, Train
from pfl_node.types import PeerId

FOR_EVER = float("inf")


class Fine(Policy):
    """Train, send to all, average all offers."""

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            peers = await Peers()
            await Send(peers, self.model, round=t)
            offers = await Gather(peers, t)
            self.model = await Average(self.model, [o.model for o in offers])
            await Report(t, self.model)


class Waits(Fine):
    """Waits forever for every peer it has ever met."""

    async def main(self) -> None:
        everybody = await Peers()
        for t in self.remaining():
            peers = await Peers()
            await Send(peers, self.model, round=t)
            while set(everybody) - set(peers):
                peers = await self.peers_in_an_hour()
            await Report(t, self.model)

    async def peers_in_an_hour(self) -> tuple[PeerId, ...]:
        await Sleep(FOR_EVER)
        return await Peers()


class Assumes(Fine):
    """Assumes that every peer answers."""

    async def main(self) -> None:
        await Publish(self.model, 0)
        for t in self.remaining():
            peers = await Peers()
            models = {o.sender: o.model for o in await Fetch(peers)}
            self.model = await Average(self.model, [models[p] for p in peers])
            await Report(t, self.model)


class Endless(Fine):
    """Ignores its number of rounds."""

    async def main(self) -> None:
        while True:
            self.model = await Train(self.model)
            await Report(self.round, self.model)


class Computes(Fine):
    """Computes forever without a step."""

    async def main(self) -> None:
        while True:
            pass


class Silent(Fine):
    """Trains without Report."""

    async def main(self) -> None:
        for _ in self.remaining():
            self.model = await Train(self.model)


class Spoils(Fine):
    """Sends NaN and keeps its own model finite."""

    async def main(self) -> None:
        for t in self.remaining():
            vector = np.full_like(self.model.vector, np.nan)
            await Send(await Peers(), Model(self.model.layout, vector), round=t)
            await Report(t, self.model)


class Diverges(Fine):
    """Ends with a model of NaN."""

    async def main(self) -> None:
        for t in self.remaining():
            vector = np.full_like(self.model.vector, np.nan if t == 2 else 0.0)
            self.model = Model(self.model.layout, vector)
            await Report(t, self.model)


class GoesBack(Fine):
    """Reports every second round twice."""

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            await Report(t - t % 2, self.model)
