"""MOON on random graphs: a penalty keeps representations close to those of the average."""

from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.el import El
from pfl_node.steps import Train


class Moon(El):
    """MOON, model-contrastive federated learning (Li, He & Song 2021, Algorithm 1)."""

    class Config(El.Config):
        mu: float = Field(1.0, ge=0, description="weight of the contrastive loss")
        tau: float = Field(0.5, gt=0, description="temperature")

    keeps = ("previous",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.previous: Model | None = None  # my model after the last training

    async def learn(self) -> None:
        if self.previous is None:
            self.model = await Train(self.model)
        else:
            # paper: the server's global model; here: the average with my neighbours, because there is no server
            anchors = {"global": self.model, "previous": self.previous}
            knobs = {"mu": self.cfg.mu, "tau": self.cfg.tau}
            self.model = await Train(self.model, penalty="moon", anchors=anchors, knobs=knobs)
        self.previous = self.model
