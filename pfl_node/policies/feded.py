"""`feded`: federated ensemble distillation. Nodes exchange predictions for shared samples, not models, so each may
have another network. The words in the comments are those of the thesis' Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies import ensemble
from pfl_node.policies.base import Policy
from pfl_node.policies.students import Student
from pfl_node.steps import Fetch, Fresh, Gather, Linger, Peers, Predict, Publish, Report, Score, Send, Train
from pfl_node.types import Offer


class FedEd(Policy):
    """FedED, weighted ensemble distillation (Eriksson 2022, Algorithm 2); each round runs all of it."""

    class Config(Student):
        weights: ensemble.How = Field("w2", description="client weights: w0 by size, w1 by class, w2 by sample")
        beta: float = Field(6.0, gt=0, description="w2: how fast a weight falls with the sample's novelty")
        # paper: no bound (1); here: 0.4, because a client to which no sample is novel would be the only teacher
        most: float = Field(0.4, gt=0, le=1, description="w2: largest mean weight of a client; paper: 1")
        gamma: float = Field(1.0, gt=0, le=1, description="share of the clients that teach a sample")
        epochs: float = Field(20.0, gt=0, description="epochs of the local training")
        autoencoder_epochs: int = Field(30, ge=1, description="w2: epochs of the autoencoder for novelty")
        wait: float = Field(600.0, gt=0, description="seconds to wait for slower nodes")

    lockstep, exact, asks = True, True, False
    takes = serves = ("predictions",)
    keeps = ("taught",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.taught = False

    # paper: a server has the teacher and the student; here: every node, because there is no server
    async def main(self) -> None:
        if not (self.more or self.taught):
            self.round -= 1  # the others had finished when I joined: take part in their last round
        for t in self.remaining():
            f_k = await self.local_training(t)
            offers = await self.exchange(t, await self.predict(f_k))
            data: dict[str, Any] = {"from": [o.sender for o in offers if o.sender != self.me]}
            if (z := self.teacher(t, offers)) is not None:  # z_T
                data["ensemble"] = (await Score([z]))[0].accuracy  # NaN: the samples have no labels
                self.model = await self.cfg.taught(self.model, z, t)
            self.taught = True
            await Report(t, self.model, data)
        await Linger()

    async def local_training(self, t: int) -> Model:
        """My model; if students have another network, a local model that only teaches."""
        if self.cfg.student_model:
            return await Train(await Fresh(seed=t, local=True), epochs=self.cfg.epochs)
        self.model = await Train(self.model, epochs=self.cfg.epochs)
        return self.model

    async def predict(self, f_k: Model) -> Model:  # z_k <- f_k(x_0)
        by_class, by_sample = self.cfg.weights == "w1", self.cfg.weights == "w2"
        return await Predict(f_k, novelty=by_sample * self.cfg.autoencoder_epochs, counts=by_class)

    async def exchange(self, t: int, mine: Model) -> Sequence[Offer]:
        """The predictions of all nodes, sorted by id, so that all have the same teacher."""
        await Publish(mine, round=t)
        peers = await Peers()
        await Send(peers, mine, round=t)
        came = list(await Gather(peers, t, patience=self.cfg.wait, others=True))
        senders = {o.sender for o in came}
        await Send(sorted(senders - set(peers)), mine, round=t)  # they joined after my Send and wait for mine
        missing = await Fetch(sorted(set(peers) - senders), part="predictions")  # they may have sent before that
        came += [o for o in missing if o.round == t]
        return sorted([Offer(self.me, mine, t, samples=self.samples), *came], key=lambda o: o.sender)

    def teacher(self, t: int, offers: Sequence[Offer]) -> Model | None:
        said, n, cfg = [o.model for o in offers], [o.samples for o in offers], self.cfg
        return ensemble.teacher(cfg.weights, said, n, cfg.beta, self.claim, cfg.most, cfg.gamma, (self.seed, t))
