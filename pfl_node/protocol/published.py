"""What peers may fetch from a node, real or simulated: what its policy told last, as far as policy and operator
let it out. No I/O."""

from __future__ import annotations

from dataclasses import replace

from pfl_node.errors import Reason, Refused
from pfl_node.settings import ServeSettings
from pfl_node.steps import Publish
from pfl_node.types import Offer, Part, PeerId


class PublishedModels:
    """`show` replaces what is there; `give` raises Refused."""

    def __init__(self, me: PeerId, settings: ServeSettings, serves: tuple[Part, ...]) -> None:
        self.me = me
        self._gates = {"head": settings.head, "predictions": settings.predictions}
        self._open = settings.model
        self._serves = serves
        self._shown: dict[Part, Offer] = {}

    def show(self, step: Publish, samples: int) -> None:
        offer = Offer(self.me, step.model, step.round, step.tag, samples, step.notes)
        self._shown[step.model.layout.part] = offer

    def check(self, part: Part) -> None:
        """Is it let out at all?"""
        if part not in self._serves:
            raise Refused(Reason.NOT_SERVED, f"the policy of this node keeps its {part} to itself")
        if not self._gates.get(part, self._open):
            raise Refused(Reason.NOT_SERVED, f"this node does not serve its {part}")

    def give(self, part: Part) -> Offer:
        self.check(part)
        offer = self._shown.get("predictions" if part == "predictions" else "model")
        if offer is None:
            raise Refused(Reason.NOT_READY, f"this node has no {part} to give yet; try again later")
        return replace(offer, model=offer.model.of(part))
