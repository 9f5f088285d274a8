"""`gradient_tracking`: follow an estimate of the mean gradient of all nodes, which is sent beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.lockstep import Near
from pfl_node.steps import Average, Gather, Gradient, Report, Send
from pfl_node.types import Part


class GradientTracking(Dpsgd):
    """DSGT, distributed stochastic gradient tracking (Pu & Nedic 2021)."""

    class Config(Dpsgd.Config):
        alpha: float = Field(0.05, gt=0, description="step size")
        batch: int | None = Field(None, ge=1, description="samples of each gradient; None: train.batch")

    vectors: ClassVar[Mapping[str, Part]] = {"y": "model"}
    keeps: ClassVar[tuple[str, ...]] = (*Dpsgd.keeps, "y", "g")
    only_gradients = True
    late = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.y: Model | None = None  # my estimate of the mean gradient of all nodes
        self.g: Model | None = None  # my last gradient

    async def step(self, t: int) -> None:
        await self.mix(t, await self.near(t))
        await Report(t, self.model)

    async def mix(self, t: int, near: Near) -> None:
        if self.y is None or self.g is None:
            self.y = self.g = await Gradient(self.model, 0, self.cfg.batch)  # y_0 = g(x_0, xi_0)
        x, y, g = self.model, self.y, self.g
        ahead = x.plus(y, -self.cfg.alpha)
        await Send(near.to, ahead, round=t, vectors={"y": y})
        offers = await Gather(near.of, t)
        # paper: every message arrives; here: my own weight replaces that of a missing message, because nodes fail;
        # the mean of all y then differs from the mean gradient by what was lost
        w = self.weights(near, offers)
        x = await Average(ahead, [o.model for o in offers], w, own=1 - sum(w))  # sum w_ij (x_j - alpha y_j)
        y = await Average(y, [o.vectors["y"] for o in offers], w, own=1 - sum(w), gated=False)  # sum w_ij y_j
        new = await Gradient(x, 1, self.cfg.batch)  # g(x_k+1, xi_k+1)
        self.model, self.y, self.g = x, y.plus(new).plus(g, -1), new
