"""`feded`: federated ensemble distillation. What a model says of shared samples travels, not the model, so every
node may have one of its own kind. The words in the comments are those of the thesis' Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies import ensemble
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Distill, Fetch, Fresh, Gather, Linger, Peers, Predict, Publish, Report, Send, Train
from pfl_node.types import Offer


class FedEd(Policy):
    """FedED, weighted ensemble distillation (Eriksson 2022, Algorithm 2); a round is all of it."""

    class Config(PolicyConfig):
        weights: ensemble.How = Field("w2", description="whose word counts: w0 by size, w1 by class, w2 by sample")
        beta: float = Field(6.0, gt=0, description="w2: how much less one counts who finds a sample strange")
        most: float = Field(0.4, gt=0, le=1, description="w2: share of the samples one decides about; paper: 1")
        epochs: float = Field(20.0, gt=0, description="of the local training")
        autoencoder_epochs: int = Field(30, ge=1, description="w2: of what learns which samples are strange")
        student: Literal["fresh", "mine"] = Field("fresh", description="who learns: a new model, or mine goes on")
        loss: Literal["mse", "ce", "kl"] = Field("mse", description="between what student and teacher say")
        temperature: float = Field(1.0, gt=0, description="of kl")
        # paper: with w2 100 epochs of lr 1e-5; here: as with w0 and w1, because on few samples 1e-5 hardly learns
        student_epochs: int = Field(30, ge=1, description="of the student")
        lr: float = Field(1e-3, gt=0, description="of the student")
        batch: int = Field(50, ge=1, description="of the student")
        held: float = Field(0.2, ge=0, lt=1, description="share of the samples that choose the student's epoch")
        wait: float = Field(600.0, gt=0, description="seconds to wait for others, who may train for longer")

    lockstep = exact = True
    takes = serves = ("predictions",)
    keeps = ("taught",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.taught = False

    async def main(self) -> None:
        if not (self.more or self.taught):
            self.round -= 1  # the others were done when I came: their last round is mine
        for t in self.remaining():
            self.model = await Train(self.model, epochs=self.cfg.epochs)  # Local Training
            offers = await self.exchange(t, await self.say())
            said, n = [o.model for o in offers], [o.samples for o in offers]
            z = ensemble.teacher(self.cfg.weights, said, n, self.cfg.beta, self.claim, self.cfg.most)  # z_T
            if z is not None:
                self.model = await self.teach(t, z)
            self.taught = True
            await Report(t, self.model, {"from": [o.sender for o in offers if o.sender != self.me]})
        await Linger()

    async def say(self) -> Model:  # z_k <- f_k(x_0)
        by_class, by_sample = self.cfg.weights == "w1", self.cfg.weights == "w2"
        return await Predict(self.model, novelty=by_sample * self.cfg.autoencoder_epochs, counts=by_class)

    async def exchange(self, t: int, mine: Model) -> Sequence[Offer]:
        """What everybody says, sorted by id, so that all nodes have the same teacher."""
        await Publish(mine, round=t)
        peers = await Peers()
        await Send(peers, mine, round=t)
        came = list(await Gather(peers, t, patience=self.cfg.wait, others=True))
        senders = {o.sender for o in came}
        await Send(sorted(senders - set(peers)), mine, round=t)  # they came when I had sent, and wait for mine
        missing = sorted(set(peers) - senders)  # they may have sent before I came
        came += [o for o in await Fetch(missing, part="predictions") if o.round == t]
        return sorted([Offer(self.me, mine, t, samples=self.samples), *came], key=lambda o: o.sender)

    async def teach(self, t: int, z: Model) -> Model:
        student = self.model if self.cfg.student == "mine" else await Fresh(seed=t + 1, common=True)
        knobs = {name: getattr(self.cfg, name) for name in ("loss", "temperature", "lr", "batch", "held")}
        # theta_S <- theta_S - eta grad L_S(z_S, z_T), for each distillation step
        learned = await Distill(student, z, epochs=self.cfg.student_epochs, **knobs)
        return self.model if learned is student else learned  # it diverged: better my own than a new one
