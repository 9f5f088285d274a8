"""One node's guard, for both drivers: whom it refuses and why, and what can be seen of that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pfl_node.errors import Reason, Refused
from pfl_node.model import Model
from pfl_node.protocol.guard import gate
from pfl_node.protocol.guard.outliers import TypicalModels
from pfl_node.protocol.guard.provenance import Provenance
from pfl_node.protocol.guard.reputation import WEIGHTS, Reputations
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Offer, PeerId

GATE = "gate"
UNTRAINED = 1_000_003  # the seed of the model that shows the gate what nobody has learnt
Tell = Callable[[str, Mapping[str, Any]], None]


def nobody(event: str, data: Mapping[str, Any]) -> None:
    """Who listens when nobody does."""


class Guard:
    """`certain`: are senders who they say they are? If not, their models are judged, but nothing counts against
    them: whoever used their names could put them into quarantine."""

    def __init__(self, settings: GuardSettings, *, certain: bool, tell: Tell = nobody) -> None:
        self.settings = settings
        self.certain = certain
        self.tell = tell
        self.refused: Counter[str] = Counter()  # models kept from the policy or from a merge, by reason
        self.ever: dict[PeerId, int] = {}  # who was in quarantine, and how often
        self.untrained: float | None = None  # the loss of a model that has learnt nothing, once it is known
        self._conduct = Reputations(settings)
        self._usual = TypicalModels(settings.outliers, settings.least) if settings.outliers else None
        self._origins = Provenance()

    # -- who -----------------------------------------------------------------------------------------------

    def admit(self, peer: PeerId, now: float) -> None:
        """May this peer bring a model? Raises Refused."""
        if left := self._conduct.left(peer, now):
            self.refused[Reason.QUARANTINED] += 1
            text = f"your messages were bad; you are in quarantine for {left:.0f} s more"
            raise Refused(Reason.QUARANTINED, text, peer)

    def free(self, peers: Iterable[PeerId], now: float) -> list[PeerId]:
        """Those who are not in quarantine: the others are not asked and not waited for."""
        return [peer for peer in peers if not self._conduct.left(peer, now)]

    def offence(self, peer: PeerId, reason: str, now: float) -> None:
        """A message of this peer was refused, or what it answered to a call of mine."""
        self._count(peer, reason, WEIGHTS.get(Reason(reason), 0.0) if reason in set(Reason) else 0.0, now)

    # -- what ----------------------------------------------------------------------------------------------

    def examine(self, offer: Offer, mine: Model | None, now: float) -> Offer:
        """Its norm, and its distance and direction from mine; raises Refused."""
        self._origins.came(offer.model, offer.sender)
        part = offer.model.layout.part
        own = mine.of(part) if mine is not None and part != "predictions" else None
        if self._usual and (found := self._usual.judge(offer.sender, offer.model, own)):
            self.refused[Reason.OUTLIER] += 1
            self._count(offer.sender, Reason.OUTLIER, found.weight, now)
            raise Refused(Reason.OUTLIER, str(found), offer.sender)
        return offer

    def fetched(self, offers: Iterable[Offer], mine: Model | None, now: float) -> tuple[Offer, ...]:
        """Those of them that may be used."""
        kept = []
        for offer in offers:
            try:
                kept.append(self.examine(offer, mine, now))
            except Refused as refused:
                self.tell("kept_out", {"peer": offer.sender, "reason": str(refused.reason), "why": refused.text})
        return tuple(kept)

    def to_score(self, step: Average, whole: Model) -> tuple[Model, ...]:
        """The models whose losses decide about this step: mine, then the others. Empty: the gate has no say."""
        if self.settings.gate is None or not step.others or step.mine.layout.part == "predictions":
            return ()
        return gate.completed(step, whole) or ()

    def sifted(self, step: Average, scores: Sequence[Eval], now: float) -> Average:
        """The step without the models that the gate refuses. As long as `untrained` is not known, one score
        more is that of a model that has learnt nothing."""
        assert self.settings.gate is not None
        known = len(step.models)
        if len(scores) > known:
            self.untrained = scores[known].loss
        assert self.untrained is not None
        places = gate.refused(scores[:known], self.untrained, self.settings.gate, step.mine.layout.part)
        for place in places:
            self.refused[GATE] += 1
            sender = self._origins.of(step.others[place])
            losses = {"loss": scores[place + 1].loss, "mine": scores[0].loss}
            self.tell("kept_out", {"peer": sender, "reason": GATE, **losses})
            if sender is not None:
                self._count(sender, GATE, self.settings.blame, now)
        return gate.without(step, places) if places else step

    # -- what can be seen of it ----------------------------------------------------------------------------

    def quarantined(self, now: float) -> dict[PeerId, float]:
        """Who is in quarantine, and for how many seconds more."""
        return self._conduct.quarantined(now)

    def status(self, now: float) -> dict[str, Any]:
        """Plain values."""
        return {
            "refused": dict(sorted(self.refused.items())),
            "against": {peer: round(score, 3) for peer, score in sorted(self._conduct.against(now).items())},
            "quarantine": {peer: round(left, 1) for peer, left in sorted(self.quarantined(now).items())},
            "ever": dict(sorted(self.ever.items())),
        }

    def dump(self) -> dict[str, Any]:
        """What goes on after a segment of a simulation, as JSON has it."""
        return {
            "refused": dict(self.refused),
            "ever": dict(self.ever),
            "conduct": self._conduct.dump(),
            "usual": self._usual.dump() if self._usual else [],
        }

    def load(self, row: Mapping[str, Any]) -> None:
        self.refused = Counter(row["refused"])
        self.ever = dict(row["ever"])
        self._conduct.load(row["conduct"])
        if self._usual:
            self._usual.load(row["usual"])

    def _count(self, peer: PeerId, reason: str, weight: float, now: float) -> None:
        if not self.certain:
            return
        seconds = self._conduct.count(peer, weight, now)
        if seconds is not None:
            self.ever[peer] = self.ever.get(peer, 0) + 1
            facts = {"peer": peer, "seconds": seconds, "reason": reason, "times": self.ever[peer]}
            self.tell("quarantined", facts)
