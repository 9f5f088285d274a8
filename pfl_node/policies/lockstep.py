"""Train, exchange and average in rounds that all nodes share: the base of `el`, `dpsgd` and others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Gather, Peers, Report, Send, Train
from pfl_node.types import Offer, Part, PeerId


class Near(NamedTuple):
    """My neighbours in the graph of a round."""

    to: Sequence[PeerId]  # recipients of my model
    of: Sequence[PeerId]  # senders of models to me


class Lockstep(Policy):
    """Each round: train, send to some peers, average with the models of some peers."""

    class Config(PolicyConfig):
        all_reduce: bool = Field(False, description="after the last round, one exchange with all nodes")

        @property
        def usual_degree(self) -> int:
            """Number of neighbours that both send to a node and receive from it; 0: senders and receivers
            differ."""
            return 0

    lockstep = True
    asks = False
    averages: ClassVar[bool] = True  # `mix` takes the mean of whole models
    serves: ClassVar[tuple[Part, ...]] = ()
    late = True

    # paper: (of most subclasses) all nodes start from one model; here: as `train.init` says, by default each from
    # its own, because this is a setting of the run and not of a policy
    async def main(self) -> None:
        for t in self.remaining():
            await self.step(t)
        if self.all_reduces:
            peers = await Peers()
            await self.all_reduce(self.round, Near(peers, peers))
            self.round += 1

    async def step(self, t: int) -> None:
        if self.correlated:  # the noise of the training depends on the neighbours
            near = await self.near(t)
            self.model = await Train(self.model, partners=near.to)
        else:
            await self.learn()
            near = await self.near(t)
        await self.mix(t, near)
        await Report(t, self.model)

    async def all_reduce(self, t: int, everybody: Near) -> None:
        await self.mix(t, everybody)
        await Report(t, self.model)

    async def learn(self) -> None:
        self.model = await Train(self.model)

    @abstractmethod
    async def near(self, t: int) -> Near:
        """My part of the round's graph."""

    async def exchange(self, t: int, near: Near, model: Model, tag: int = 0) -> Sequence[Offer]:
        await Send(near.to, model, round=t, tag=tag)
        return await Gather(near.of, t, others=self.others)

    async def mix(self, t: int, near: Near) -> None:
        offers = await self.exchange(t, near, self.model)
        self.model = await Average(self.model, [o.model for o in offers])

    @classmethod
    def pair_degree(cls, cfg: PolicyConfig) -> int:
        """0 for subclasses whose round is more than one training and one exchange of whole models."""
        plain = (
            cls.averages and cls.takes == ("model",) and (cls.step, cls.learn) == (Lockstep.step, Lockstep.learn)
        )
        return cfg.usual_degree if plain and isinstance(cfg, Lockstep.Config) else 0

    @property
    def others(self) -> bool:
        """Whether models of peers that were not expected to send are used too."""
        return False

    @property
    def all_reduces(self) -> bool:
        """The all-reduce is a round of its own, number T, so that a restarted node does not repeat it."""
        return bool(self.cfg.all_reduce) and self.round == self.rounds
