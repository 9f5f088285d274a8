"""`fedavg`: federated averaging; every node is its own server. The words are those of the paper's Algorithm 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.topology import sample
from pfl_node.steps import Average, Fetch, Fresh, Gather, Peers, Report, Send, Train
from pfl_node.types import Offer

ASKED = 3  # peers that a node asks for the common model


class FedAvg(Policy):
    """FederatedAveraging (McMahan et al. 2017, Algorithm 1)."""

    class Config(PolicyConfig):
        C: float = Field(0.1, gt=0, le=1, description="fraction of the nodes that train in a round; at least one")
        wait: float = Field(600.0, gt=0, description="seconds to wait for the models of these nodes")

    lockstep, exact, asks = True, True, False
    keeps = ("begun",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.begun = False
        self.next = 0  # the round whose common model I have; after a restart it is unknown

    async def main(self) -> None:
        if not self.begun:
            self.model, self.begun = await Fresh(common=True), True  # initialize w_0
        for t in self.remaining():  # for each round t
            if t == self.next or not await self.catch_up(t):
                came = await self.updates(t)  # for each client k in S_t in parallel
                # paper: a server takes the sum; here: each node, in one order, because all must get the same bits
                n = [float(o.samples) for o in came]
                w = [o.model for o in came]
                bounded = self.claim is not None
                self.model = await Average(self.model, w, n, own=0, claimed=bounded)  # sum n_k / n w_k
                self.next = t + 1 if came else self.next
                await Report(t, self.model, {"from": [o.sender for o in came]})

    async def updates(self, t: int) -> Sequence[Offer]:
        """The models of S_t, sorted by id, including mine if I am in S_t."""
        peers = await Peers()
        clients = sample([self.me, *peers], fraction=self.cfg.C, seed=self.seed, round=t)  # S_t, max(C * K, 1)
        mine = []
        if self.me in clients:
            w = await self.client_update(self.model)
            mine = [Offer(self.me, w, t, samples=self.samples)]
            await Send(peers, w, round=t, base=self.model)
        offers = await Gather([k for k in clients if k != self.me], t, self.cfg.wait)
        return sorted([*mine, *offers], key=lambda o: o.sender)

    async def client_update(self, w: Model) -> Model:
        """ClientUpdate(k, w): E epochs of batches of B, as the run's settings say."""
        return await Train(w)

    async def catch_up(self, t: int) -> bool:
        """I lack the model of round t - 1: take the one that most peers have. True: it is of round t or later."""
        peers = await Peers()
        order = self.rng.sample(peers, len(peers))
        offers = await Fetch(order[:ASKED], whole=True) or await Fetch(order[ASKED:], whole=True)
        votes = Counter(o.round for o in offers if o.round is not None)
        if not votes:
            return False
        newest = max(votes, key=lambda r: (votes[r], r))
        agreed = [o for o in offers if o.round == newest]
        self.model = await Average(self.model, [o.model for o in agreed], own=0)
        if newest < t:
            return False
        self.next = newest + 1  # until then I fetch the common model
        await Report(t, self.model, {"from": [o.sender for o in agreed]})
        return True
