"""The guard of one node: which peers and models it refuses, and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np

from pfl_node.errors import Reason, Refused
from pfl_node.model import Model, Vector
from pfl_node.protocol.guard import gate
from pfl_node.protocol.guard.outliers import Outlier, TypicalModels
from pfl_node.protocol.guard.reputation import WEIGHTS, Reputations
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Offer, PeerId

GATE = "gate"
UNTRAINED = 1_000_003  # the seed of the gate's reference model, which has learned nothing
Tell = Callable[[str, Mapping[str, Any]], None]


def no_observer(event: str, data: Mapping[str, Any]) -> None:
    """The default observer: does nothing."""


class Guard:
    """`certain`: senders are authenticated. Otherwise their models are judged without penalties, because anyone
    could use their names to have them quarantined."""

    def __init__(self, settings: GuardSettings, *, certain: bool, tell: Tell = no_observer) -> None:
        self.settings = settings
        self.certain = certain
        self.tell = tell
        self.refused: Counter[str] = Counter()  # models that were not used, by reason
        self.ever: dict[PeerId, int] = {}  # quarantines by peer
        self.untrained: float | None = None  # the loss of an untrained model, once it is known
        self._reputations = Reputations(settings)
        self._typical = TypicalModels(settings.outliers, settings.least) if settings.outliers else None
        self._provenance = Provenance()

    def admit(self, peer: PeerId, now: float) -> None:
        """Raises Refused if the peer is quarantined."""
        if left := self._reputations.left(peer, now):
            self.refused[Reason.QUARANTINED] += 1
            text = f"you sent bad messages and are quarantined for another {left:.0f} s"
            raise Refused(Reason.QUARANTINED, text, peer)

    def free(self, peers: Iterable[PeerId], now: float) -> list[PeerId]:
        """The peers that are not quarantined; the others are neither asked nor awaited."""
        return [peer for peer in peers if not self._reputations.left(peer, now)]

    def offence(self, peer: PeerId, reason: str, now: float) -> None:
        """A message of this peer, or its answer to a call of mine, was refused."""
        self._count(peer, reason, WEIGHTS.get(Reason(reason), 0.0) if reason in set(Reason) else 0.0, now)

    def examine(self, offer: Offer, mine: Model | None, now: float) -> Offer:
        """Check the norm of each vector, and the model's distance and direction from mine. Raises Refused."""
        for model in (offer.model, *offer.vectors.values()):
            self._provenance.received(model, offer.sender)
        if found := self._outlier(offer, mine):
            self.refused[Reason.OUTLIER] += 1
            self._count(offer.sender, Reason.OUTLIER, found.weight, now)
            raise Refused(Reason.OUTLIER, str(found), offer.sender)
        return offer

    def _outlier(self, offer: Offer, mine: Model | None) -> Outlier | None:
        if self._typical is None:
            return None
        part, vectors = offer.model.layout.part, offer.vectors.items()
        own = mine.of(part) if mine is not None and part != "predictions" else None
        found = [self._typical.judge(offer.sender, vector, None, f"vector {name}") for name, vector in vectors]
        return next(filter(None, [self._typical.judge(offer.sender, offer.model, own), *found]), None)

    def fetched(self, offers: Iterable[Offer], mine: Model | None, now: float) -> tuple[Offer, ...]:
        """The offers that may be used."""
        kept = []
        for offer in offers:
            try:
                kept.append(self.examine(offer, mine, now))
            except Refused as refused:
                self.tell("kept_out", {"peer": offer.sender, "reason": str(refused.reason), "why": refused.text})
        return tuple(kept)

    def to_score(self, step: Average, whole: Model) -> tuple[Model, ...]:
        """The models whose losses decide about this step: mine, then the others. Empty: the gate does not
        apply."""
        if self.settings.gate is None or not step.others or not step.gated:
            return ()
        if step.mine.layout.part == "predictions":
            return ()
        return gate.completed(step, whole) or ()

    def sifted(self, step: Average, scores: Sequence[Eval], now: float) -> Average:
        """The step without the models that the gate refuses. While `untrained` is unknown, an additional last
        score is that of an untrained model."""
        assert self.settings.gate is not None
        known = len(step.models)
        if len(scores) > known:
            self.untrained = scores[known].loss
        assert self.untrained is not None
        places = gate.refused(scores[:known], self.untrained, self.settings.gate, step.mine.layout.part)
        for place in places:
            self.refused[GATE] += 1
            sender = self._provenance.of(step.others[place])
            losses = {"loss": scores[place + 1].loss, "mine": scores[0].loss}
            self.tell("kept_out", {"peer": sender, "reason": GATE, **losses})
            if sender is not None:
                self._count(sender, GATE, self.settings.blame, now)
        return gate.without(step, places) if places else step

    def quarantined(self, now: float) -> dict[PeerId, float]:
        return self._reputations.quarantined(now)

    def status(self, now: float) -> dict[str, Any]:
        """JSON values."""
        return {
            "refused": dict(sorted(self.refused.items())),
            "against": {peer: round(score, 3) for peer, score in sorted(self._reputations.against(now).items())},
            "quarantine": {peer: round(left, 1) for peer, left in sorted(self.quarantined(now).items())},
            "ever": dict(sorted(self.ever.items())),
        }

    def dump(self) -> dict[str, Any]:
        """The state between segments of a simulation, as JSON values."""
        return {
            "refused": dict(self.refused),
            "ever": dict(self.ever),
            "untrained": self.untrained,
            "conduct": self._reputations.dump(),
            "usual": self._typical.dump() if self._typical else [],
        }

    def load(self, row: Mapping[str, Any]) -> None:
        self.refused = Counter(row["refused"])
        self.ever = dict(row["ever"])
        self.untrained = row["untrained"]
        self._reputations.load(row["conduct"])
        if self._typical:
            self._typical.load(row["usual"])

    def _count(self, peer: PeerId, reason: str, weight: float, now: float) -> None:
        if not self.certain:
            return
        seconds = self._reputations.count(peer, weight, now)
        if seconds is not None:
            self.ever[peer] = self.ever.get(peer, 0) + 1
            facts = {"peer": peer, "seconds": seconds, "reason": reason, "times": self.ever[peer]}
            self.tell("quarantined", facts)


class Provenance:
    """Maps an array to its sender as long as the array is in use. A core or a head is a view of the array, and a
    partial model that was completed refers to it."""

    def __init__(self) -> None:
        self._senders: dict[int, tuple[ref[Vector], PeerId]] = {}

    def received(self, model: Model, sender: PeerId) -> None:
        owner = _owner(model)
        key = id(owner)
        self._senders[key] = (ref(owner, lambda _: self._forget(key)), sender)

    def of(self, model: Model) -> PeerId | None:
        """The sender of a model or part; None: it is my own."""
        owner = _owner(model)
        known = self._senders.get(id(owner))
        return known[1] if known is not None and known[0]() is owner else None

    def __len__(self) -> int:
        return len(self._senders)

    def _forget(self, key: int) -> None:
        known = self._senders.get(key)
        if known is not None and known[0]() is None:
            del self._senders[key]


def _owner(model: Model) -> Vector:
    while model.source is not None:
        model = model.source
    array = model.numbers
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
