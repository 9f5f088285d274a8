"""`gossip`: push to a random peer, average received models. Line numbers refer to the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.steps import Average, Linger, Peers, Report, Send, Sleep, Train
from pfl_node.types import Offer, PeerId


class Gossip(EarlyStopping):
    """Random gossip learning (Onoszko et al. 2021, Algorithm 1)."""

    class Config(EarlyStopping.Config):
        n_peers: int = Field(20, ge=1, description="models to wait for before they are merged")
        delta: float = Field(1.0, gt=0, description="mean seconds between two sends")
        jitter: float = Field(0.5, ge=0, le=1, description="largest deviation from delta, relative to it")
        quiet: float = Field(10.0, gt=0, description="seconds without a model before a round continues with fewer")

    keeps: ClassVar[tuple[str, ...]] = (*EarlyStopping.keeps, "trained")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.trained = False
        self.saved: list[Offer] = []

    async def main(self) -> None:  # 1
        if not self.trained:  # section 4.1: updated for E epochs, then communicated
            self.model, self.trained = await Train(self.model), True
        while self.more:  # 2
            await Sleep(self.wait())  # 3
            await self.push()
        while self.stopped and not await Linger(self.wait()):  # thesis, 3.4: "still participates"
            await self.push()

    def wait(self) -> float:
        return float(self.cfg.delta * self.rng.uniform(1 - self.cfg.jitter, 1 + self.cfg.jitter))

    async def push(self) -> None:
        if peers := await self.recipients():
            await Send([self.rng.choice(peers)], self.model)  # 4-5

    async def on_model(self, offer: Offer) -> None:  # 8
        self.saved.append(offer)  # 9
        if len(self.saved) >= self.models_per_round:  # 10
            await self.update()

    async def on_quiet(self) -> None:
        # paper: waits for n_peers models; here: until no more arrive, because the others may be gone
        await self.update()

    async def update(self) -> None:
        if not (self.trained and self.more):
            del self.saved[: -self.models_per_round]
            return
        saved, self.saved = self.saved, []
        chosen = await self.select(saved)
        merged = await Average(self.model, [o.model for o in chosen])  # 11
        self.model = await Train(merged)  # 12
        await self.check_stop()
        await Report(self.round, self.model, {"from": [o.sender for o in chosen]})
        self.round += 1

    async def recipients(self) -> Sequence[PeerId]:
        return await Peers()

    async def select(self, saved: Sequence[Offer]) -> Sequence[Offer]:  # which received models are merged
        return saved

    @property
    def models_per_round(self) -> int:
        return int(self.cfg.n_peers)

    @property
    def quiet_after(self) -> float:
        return float(self.cfg.quiet)
