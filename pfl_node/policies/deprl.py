"""`deprl`: a shared core and a private head. Letters refer to the paper's figure 1."""

from __future__ import annotations

from pydantic import Field

from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Near
from pfl_node.steps import Average, Train


class Deprl(El):
    """DePRL, personalized decentralized learning with a shared representation (Xiong et al. 2024, Algorithm 1)."""

    class Config(El.Config):
        head_steps: int = Field(0, ge=0, description="batches for the head; 0: as the training settings say")
        core_steps: int = Field(1, ge=0, description="batches for the core; 0: as the training settings say")

    takes = serves = ("core",)

    async def learn(self) -> None:
        # paper: Trinca 2024 has ten steps for all, its code an epoch for each part on CIFAR-10; here: as the knobs
        # say, because an epoch in batches of 100 has twenty times the images that the other policies train on
        self.model = await Train(self.model, only="head", steps=self.cfg.head_steps or None)  # b
        self.model = await Train(self.model, only="core", steps=self.cfg.core_steps or None)  # c

    async def mix(self, t: int, near: Near) -> None:
        # paper: a fixed graph and its weights; here: el's graph and the plain mean, as in Trinca 2024, because
        # that thesis compares it with el
        offers = await self.exchange(t, near, self.model.core)
        core = await Average(self.model.core, [o.model for o in offers])  # d
        self.model = core + self.model.head
