"""The models that peers may fetch from a node, as far as policy and operator permit. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pfl_node.errors import Reason, Refused
from pfl_node.settings import ServeSettings
from pfl_node.steps import Publish
from pfl_node.types import Offer, Part, PeerId


class PublishedModels:
    """`show` replaces the published model; `give` returns it or raises Refused."""

    def __init__(self, me: PeerId, settings: ServeSettings, serves: tuple[Part, ...]) -> None:
        self.me = me
        self._served = {"head": settings.head, "predictions": settings.predictions}
        self._serves_model = settings.model
        self._serves = serves
        self._published: dict[Part, Offer] = {}

    def show(self, step: Publish, samples: int) -> None:
        offer = Offer(self.me, step.model, step.round, step.tag, samples, step.notes, step.vectors)
        self._published[step.model.layout.part] = offer

    def dump(self) -> dict[Part, Offer]:
        return dict(self._published)

    def load(self, published: Mapping[Part, Offer]) -> None:
        self._published = dict(published)

    def check(self, part: Part) -> None:
        if part not in self._serves:
            raise Refused(Reason.NOT_SERVED, f"the policy of this node does not share its {part}")
        if not self._served.get(part, self._serves_model):
            raise Refused(Reason.NOT_SERVED, f"this node does not serve its {part}")

    def give(self, part: Part) -> Offer:
        self.check(part)
        offer = self._published.get("predictions" if part == "predictions" else "model")
        if offer is None:
            raise Refused(Reason.NOT_READY, f"this node has published no {part} yet; try again later")
        return replace(offer, model=offer.model.of(part))
