"""`ditto`: a common model by epidemic learning, and a personal one that stays near it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Near
from pfl_node.steps import Average, Train


class Ditto(El):
    """Ditto, personalization with a proximal term (Li et al. 2021, Algorithm 1), on the graph of `el`."""

    class Config(El.Config):
        lam: float = Field(1.0, ge=0, description="lambda: weight of the distance to the common model; 0: local")

    keeps = ("w",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.w = self.model  # the common model; self.model is v, the personal one

    # paper: a server averages w over the sampled devices; here: each node with its neighbours, because there is no
    # server, so w differs a little between nodes
    async def learn(self) -> None:
        trained = await Train(self.w)  # w from w^t
        # paper: Algorithm 1 solves for w, then takes s steps eta (grad F(v) + lambda (v - w^t)) of v; its code
        # takes a step of each on each batch; here: two trainings, because a policy's step is one training, and v
        # and w get the same number of steps, as in its code
        # paper: v and w have no parameter in common; here: both train the private tensors of a task, because a
        # node has one set of them
        self.model = await Train(self.model, prox=self.cfg.lam, anchor=self.w, slot=1)  # v
        self.w = trained

    async def mix(self, t: int, near: Near) -> None:
        offers = await self.exchange(t, near, self.w)
        self.w = await Average(self.w, [o.model for o in offers])
