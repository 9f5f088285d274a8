"""What a simulated node does for peers that call, and with what it got of them: as `node/host.py` decides it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.types import Eval, Offer, Part, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode


class SimReception:
    """The node as its peers see it."""

    def __init__(self, node: SimNode, lie: Callable[[Eval], Eval] | None) -> None:
        self.node = node
        self._lie = lie  # what a malicious node says about the models of others

    def take(self, offer: Offer, *, finite: bool) -> None:
        """A model was pushed; raises Refused."""
        mine = self.mine(offer)
        self.node.guard.admit(offer.sender, self._now)
        self.node.mailbox.admit(offer.sender, offer.round, offer.model.layout.part, offer.nbytes)
        try:
            if not finite:
                raise Refused(Reason.NOT_FINITE, "the model holds a NaN or an infinity", offer.sender)
            self.node.guard.examine(mine, self.node.policy.model, self._now)
        except Refused:
            self.node.mailbox.cancel(offer.sender, offer.round)
            self.node.mailbox.spoil(offer.sender, offer.round)
            raise
        self.node.mailbox.put(mine)

    def mine(self, offer: Offer) -> Offer:
        """As the codec does it: of my layout; raises Refused where it is of another."""
        self._check_layout(offer.model, offer.sender)
        return replace(offer, model=Model(self._layout(offer.model.layout.part), offer.model.vector))

    def serve(self, part: Part) -> Offer:
        """What a Fetch gets; raises Refused."""
        return self.node.window.give(part)

    def evaluate(self, model: Model, asker: PeerId) -> Eval:
        """What an Ask gets; raises Refused. It runs beside the node's own training, which it does not hold up."""
        if not self.node.world.settings.serve.evaluate:
            raise Refused(Reason.NOT_SERVED, "this node does not score models of others", asker)
        self.node.guard.admit(asker, self._now)
        self._check_layout(model, asker)
        score = self._score(model, asker)
        return self._lie(score) if self._lie else score

    def _score(self, model: Model, asker: PeerId) -> Eval:
        learner, oracle = self.node.learner, self.node.privacy.oracle
        if oracle is None:
            return learner.score([model], split="train", samples=None, own_sample_each=False, seed=0)[0]
        known = oracle.known(asker, model)
        return known if known is not None else oracle.tell(asker, model, *learner.each(model))

    def fetched(self, offers: Collection[Offer]) -> tuple[Offer, ...]:
        """What came of a Fetch, as far as it may be used."""
        now = self._now
        for offer in offers:
            if not offer.model.is_finite():
                self.node.guard.offence(offer.sender, Reason.NOT_FINITE, now)
        return self.node.guard.fetched([o for o in offers if o.model.is_finite()], self.node.policy.model, now)

    @property
    def _now(self) -> float:
        return self.node.clock.now

    def _check_layout(self, model: Model, sender: PeerId) -> None:
        layout = model.layout
        if layout is not self.node.learner.layout and layout != self._layout(layout.part):
            raise Refused(Reason.LAYOUT, f"a {layout.part} of another layout", sender)

    def _layout(self, part: Part) -> Layout:
        if part != "predictions":
            return self.node.learner.layout.of(part)
        if self.node.learner.predictions is None:
            raise Refused(Reason.LAYOUT, "this node's task has no auxiliary samples, so no predictions")
        return self.node.learner.predictions
