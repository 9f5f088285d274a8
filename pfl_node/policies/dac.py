"""`dac`: fetch more and more from the peers whose models suit my data. The names are those of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from typing import Any

from pydantic import Field

from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Average, Fetch, Linger, Peers, Publish, Report, Score, Train
from pfl_node.types import Eval, Offer, PeerId

MAX_SIMILARITIES, MOST = 4096, 1e6  # most similarities sent with a model; highest similarity (loss near zero)


class Dac(Policy):
    """DAC, decentralized adaptive clustering (Listo Zec et al. 2022, Algorithm 1)."""

    class Config(PolicyConfig):
        n_sampled: int = Field(4, ge=1, description="peers whose models are fetched in a round")
        a: float = Field(30.0, ge=0, description="final weight of the similarities: tau converges to a + 1")
        b: float = Field(0.2, ge=0, description="how fast tau converges")
        score_samples: int | None = Field(None, ge=1, description="own samples to score a model on; none: all")

    takes, asks, keeps = (), False, ("s", "hearsay")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.s, self.hearsay = dict[PeerId, float](), dict[PeerId, float]()  # measured; reported by peers

    # paper: all clients train, then all exchange; here: each at its own pace, because Fetch does not wait
    async def main(self) -> None:
        if self.round:  # restarted: serve at once
            await Publish(self.model, self.round, notes=self.similarities)
        for t in self.remaining():
            trained = await Train(self.model)
            await Publish(trained, t, notes=self.similarities)
            peers = await Peers()
            offers = await Fetch(self.sample(peers, tau(t, self.cfg.a, self.cfg.b)))
            w, n = [o.model.over(trained) for o in offers], [float(o.samples) for o in offers]
            scores = await Score(w, samples=self.cfg.score_samples) if offers else ()
            self.s |= {o.sender: similarity(e) for o, e in zip(offers, scores, strict=True)}
            self.update_estimates(offers, peers)
            # paper: n_k as reported; here: at most 10 times the median (`aggregate.claim`), because peers may lie
            self.model = await Average(trained, w, weights=n, own=float(self.samples), claimed=True)
            await Publish(trained, t, notes=self.similarities)  # peers fetch the trained model, not the average
            await Report(t, self.model, {"from": [o.sender for o in offers]}, publish=False)
        await Linger()

    def sample(self, peers: Sequence[PeerId], tau_t: float) -> list[PeerId]:
        """n_sampled peers without replacement, with p = softmax(tau * s); s = 0 for a peer without an estimate."""
        left, chosen = {j: tau_t * self.s.get(j, self.hearsay.get(j, 0.0)) for j in peers}, list[PeerId]()
        while left and len(chosen) < self.cfg.n_sampled:
            top = max(left.values())  # exp would overflow without it
            chosen += self.rng.choices(list(left), [exp(v - top) for v in left.values()])
            del left[chosen[-1]]
        return chosen

    def update_estimates(self, offers: Sequence[Offer], peers: Sequence[PeerId]) -> None:
        """The two-hop estimate for a peer j I have not scored: s_ij = s_kj of the most similar k that sent it."""
        # paper: estimates are sent like measurements; here: they are not, because they become stale
        for o in sorted(offers, key=lambda o: self.s[o.sender]):
            self.hearsay |= {PeerId(j): min(s, MOST) for j, s in o.notes.items() if s > 0}
        self.hearsay = {j: self.hearsay[j] for j in peers if j in self.hearsay and j not in self.s}

    @property
    def similarities(self) -> dict[str, float]:
        """My measurements, most similar first; none if `discreet`, as they disclose losses on my samples."""
        best = sorted(self.s, key=lambda j: (-self.s[j], j))[:MAX_SIMILARITIES]
        return {} if self.discreet else {j: self.s[j] for j in best}


def tau(t: int, a: float, b: float) -> float:
    return 2 * a / (1 + exp(-b * t)) - a + 1


def similarity(score: Eval) -> float:
    return 1 / max(score.loss, 1 / MOST) if isfinite(score.loss) else 0.0
