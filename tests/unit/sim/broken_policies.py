"""Policies that break what every policy must hold, each in another way: for those who say they would notice."""

from __future__ import annotations

import numpy as np

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.steps import Average, Fetch, Gather, Peers, Publish, Report, Send, Sleep, Train
from pfl_node.types import PeerId

FOR_EVER = float("inf")


class Fine(Policy):
    """Everybody trains, sends to everybody and averages what came."""

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
    """For the models of all that it ever met, for ever."""

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
    """That everybody answers."""

    async def main(self) -> None:
        await Publish(self.model, 0)
        for t in self.remaining():
            peers = await Peers()
            models = {o.sender: o.model for o in await Fetch(peers)}
            self.model = await Average(self.model, [models[p] for p in peers])
            await Report(t, self.model)


class Endless(Fine):
    """Does not count its rounds."""

    async def main(self) -> None:
        while True:
            self.model = await Train(self.model)
            await Report(self.round, self.model)


class Computes(Fine):
    """For ever, and asks for nothing."""

    async def main(self) -> None:
        while True:
            pass


class Silent(Fine):
    """Learns, and tells nobody."""

    async def main(self) -> None:
        for _ in self.remaining():
            self.model = await Train(self.model)


class Spoils(Fine):
    """Sends what is no number, and keeps its own model whole."""

    async def main(self) -> None:
        for t in self.remaining():
            vector = np.full_like(self.model.vector, np.nan)
            await Send(await Peers(), Model(self.model.layout, vector), round=t)
            await Report(t, self.model)


class Diverges(Fine):
    """Ends with what is no number."""

    async def main(self) -> None:
        for t in self.remaining():
            vector = np.full_like(self.model.vector, np.nan if t == 2 else 0.0)
            self.model = Model(self.model.layout, vector)
            await Report(t, self.model)


class GoesBack(Fine):
    """Reports its rounds in pairs."""

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            await Report(t - t % 2, self.model)
