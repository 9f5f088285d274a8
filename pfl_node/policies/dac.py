"""`dac`: fetch more and more from the peers whose models suit my data. The names are those of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from typing import Any

from pydantic import Field

from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Fetch, Linger, Peers, Publish, Report, Score, Train
from pfl_node.types import Eval, Offer, PeerId

TOLD = 4096  # similarities that travel with a model
MOST = 1e6  # as similar as can be: a loss of nearly nothing


class Dac(Policy):
    """DAC, decentralized adaptive clustering (Listo Zec et al. 2022, Algorithm 1)."""

    class Config(PolicyConfig):
        n_sampled: int = Field(4, ge=1, description="peers whose models are fetched in a round")
        a: float = Field(30.0, ge=0, description="how much the similarities decide in the end: tau goes to a + 1")
        b: float = Field(0.2, ge=0, description="how soon")
        score_samples: int | None = Field(None, ge=1, description="own samples to score a model on; none: all")

    takes = ()
    keeps = ("s", "hearsay")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.s: dict[PeerId, float] = {}  # how similar those are whose models I scored
        self.hearsay: dict[PeerId, float] = {}  # and those of whom I only heard

    async def main(self) -> None:
        await Publish(self.model, self.round, notes=self.told)  # all have a model before the first round
        for t in self.remaining():
            peers = await Peers()
            offers = await Fetch(self.sample(peers, tau(t, self.cfg.a, self.cfg.b)))
            scores = await Score([o.model for o in offers], samples=self.cfg.score_samples) if offers else ()
            self.s |= {o.sender: similarity(e) for o, e in zip(offers, scores, strict=True)}
            self.hear(offers, peers)
            n, own = [float(o.samples) for o in offers], float(self.samples)
            merged = await Average(self.model, [o.model for o in offers], weights=n, own=own, claimed=True)
            self.model = await Train(merged)
            await Report(t, self.model, {"from": [o.sender for o in offers]}, notes=self.told)
        await Linger()

    def sample(self, peers: Sequence[PeerId], tau_t: float) -> list[PeerId]:
        """n of them without replacement, with p = softmax(tau * s); one of whom I know nothing has s = 0."""
        left = {j: tau_t * self.s.get(j, self.hearsay.get(j, 0.0)) for j in peers}
        chosen: list[PeerId] = []
        while left and len(chosen) < self.cfg.n_sampled:
            top = max(left.values())  # without it exp overflows
            chosen += self.rng.choices(list(left), [exp(v - top) for v in left.values()])
            del left[chosen[-1]]
        return chosen

    def hear(self, offers: Sequence[Offer], peers: Sequence[PeerId]) -> None:
        """The two-hop estimate: s_ij = s_kj for a peer j I never met, of the most similar k that told of it."""
        for o in sorted(offers, key=lambda o: self.s[o.sender]):
            self.hearsay |= {PeerId(j): min(s, MOST) for j, s in o.notes.items() if s > 0}
        self.hearsay = {j: self.hearsay[j] for j in peers if j in self.hearsay and j not in self.s}

    @property
    def told(self) -> dict[str, float]:
        """What I say of others: what I measured, not what I heard, the most similar first. It is the exact loss of
        a model of theirs on my samples, so where I am discreet I say nothing."""
        best = [] if self.discreet else sorted(self.s, key=lambda j: (-self.s[j], j))[:TOLD]
        return {j: self.s[j] for j in best}


def tau(t: int, a: float, b: float) -> float:
    """How much the similarities decide: 1 at first, a + 1 in the end."""
    return 2 * a / (1 + exp(-b * t)) - a + 1


def similarity(score: Eval) -> float:
    return 1 / max(score.loss, 1 / MOST) if isfinite(score.loss) else 0.0
