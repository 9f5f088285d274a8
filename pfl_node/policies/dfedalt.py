"""`dfedalt`: a shared core and a private head, trained in turn."""

from __future__ import annotations

from pydantic import Field

from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Lockstep, Near
from pfl_node.steps import Average, Train


class Alternating(Lockstep):
    """Trains the private head v, then the shared core u."""

    class Config(Lockstep.Config):
        # paper: its authors' code has 1 epoch of v and 5 of u with 100 times the learning rate; here: u and all
        # rates as the settings say, because all policies share them
        head_epochs: float = Field(1.0, ge=0, description="epochs of the head; 0: as the settings say")
        core_epochs: float = Field(0.0, ge=0, description="epochs of the core; 0: as the settings say")
        at_once: bool = Field(False, description="train both together, as FedPer does (Arivazhagan et al. 2019)")

    takes = serves = ("core",)

    async def learn(self) -> None:
        if self.cfg.at_once:
            self.model = await Train(self.model)
            return
        self.model = await Train(self.model, only="head", epochs=self.cfg.head_epochs or None)  # u is fixed
        self.model = await Train(self.model, only="core", epochs=self.cfg.core_epochs or None)  # v is fixed


class DFedAlt(Alternating, El):
    """DFedAlt, decentralized partial model training (Shi et al. 2023)."""

    class Config(Alternating.Config, El.Config):
        pass

    async def mix(self, t: int, near: Near) -> None:
        # paper: its authors' code takes the mean with neighbours that each client draws; here: the mean on el's
        # graph, because every node then sends and receives the same amount
        offers = await self.exchange(t, near, self.model.core)
        self.model = await Average(self.model.core, [o.model for o in offers]) + self.model.head
