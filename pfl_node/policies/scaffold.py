"""`scaffold`: correct local steps by control variates. Line numbers refer to the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.lockstep import Near
from pfl_node.steps import Average, Gather, Gradient, Send, Train
from pfl_node.types import Part


class Scaffold(Dpsgd):
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1)."""

    class Config(Dpsgd.Config):
        K: int = Field(10, ge=1, description="local steps in a round")
        eta_l: float = Field(0.05, gt=0, description="step size of the local steps, which are plain SGD")
        option: Literal["I", "II"] = Field(
            "II", description="the control variate is I: the gradient at the average, II: the mean local gradient"
        )

    vectors: ClassVar[Mapping[str, Part]] = {"c": "model"}
    keeps: ClassVar[tuple[str, ...]] = (*Dpsgd.keeps, "c", "c_i")
    late = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # paper: a server has x and c, and samples clients (4); here: all nodes take part, each has its own x and c
        # and averages them with those of its neighbours, because there is no server
        self.c = self.c_i = Model(self.model.layout, np.zeros_like(self.model.vector))

    async def learn(self) -> None:
        x, c, c_i = self.model, self.c, self.c_i
        y_i = await Train(x, steps=self.cfg.K, lr=self.cfg.eta_l, correction=c.plus(c_i, -1), plain=True)  # 8-11
        if y_i == x:  # the training was discarded
            return
        if self.cfg.option == "I":
            new = await Gradient(x, samples=max(1, self.samples))  # 12 (i): g_i(x)
        else:
            moved = x.plus(y_i, -1).trained_only()  # batch statistics do not move along gradients
            new = c_i.plus(c, -1).plus(moved, 1 / (self.cfg.K * self.cfg.eta_l))  # 12 (ii)
        # paper: the server adds the mean change of all c_i to c; here: each node adds its own change before the
        # average, because the mean of all c then stays the mean of all c_i
        self.model, self.c, self.c_i = y_i, c.plus(new).plus(c_i, -1), new  # 13, 14

    async def mix(self, t: int, near: Near) -> None:
        # paper: a global step size eta_g; here: 1, because an average takes the place of the server's step
        await Send(near.to, self.model, round=t, vectors={"c": self.c})  # 13
        offers = await Gather(near.of, t)
        w = self.weights(near, offers)
        c = await Average(self.c, [o.vectors["c"] for o in offers], w, own=1 - sum(w), gated=False)  # 16, 17
        self.model = await Average(self.model, [o.model for o in offers], w, own=1 - sum(w))  # 16, 17
        self.c = c
