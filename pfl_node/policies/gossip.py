"""`gossip`: push to a random peer, average what came. The numbers are lines of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Peers, Report, Send, Sleep, Train
from pfl_node.types import Offer, PeerId


class Gossip(Policy):
    """Random gossip learning (Onoszko et al. 2021, Algorithm 1)."""

    class Config(PolicyConfig):
        n_peers: int = Field(20, ge=1, description="models to wait for before they are merged")
        delta: float = Field(1.0, gt=0, description="seconds between two sends, in the mean")
        jitter: float = Field(0.5, ge=0, le=1, description="how far a wait may be from delta, as a part of it")
        quiet: float = Field(
            10.0, gt=0, description="seconds without a model after which the round goes on with less"
        )

    keeps: ClassVar[tuple[str, ...]] = ("trained",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.trained = False
        self.saved: list[Offer] = []

    async def main(self) -> None:  # 1
        if not self.trained:
            self.model = await Train(self.model)  # section 4.1: updated for E epochs, then communicated
            self.trained = True
        while self.more:  # 2
            wait = self.cfg.delta * self.rng.uniform(1 - self.cfg.jitter, 1 + self.cfg.jitter)
            await Sleep(wait)  # 3
            if peers := await self.audience():
                j = self.rng.choice(peers)  # 4
                await Send([j], self.model)  # 5

    async def on_model(self, offer: Offer) -> None:  # 8
        self.saved.append(offer)  # 9
        if len(self.saved) >= self.wanted:  # 10
            await self.update()

    async def on_quiet(self) -> None:
        # paper: waits for n_peers models; here: until nothing comes any more, because the others may be gone
        await self.update()

    async def update(self) -> None:
        if not (self.trained and self.more):
            del self.saved[: -self.wanted]
            return
        saved, self.saved = self.saved, []
        chosen = await self.select(saved)
        merged = await Average(self.model, [o.model for o in chosen])  # 11
        self.model = await Train(merged)  # 12
        await Report(self.round, self.model, {"from": [o.sender for o in chosen]})
        self.round += 1

    async def audience(self) -> Sequence[PeerId]:
        """Who may get my model."""
        return await Peers()

    async def select(self, saved: Sequence[Offer]) -> Sequence[Offer]:
        """Which of the models that came are merged."""
        return saved

    @property
    def wanted(self) -> int:
        """How many models make a round."""
        return int(self.cfg.n_peers)

    @property
    def quiet_after(self) -> float:
        return float(self.cfg.quiet)
