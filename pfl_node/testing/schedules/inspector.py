"""Watches a run: every step that a policy asks for, every answer, every line of the journal, against the rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.sim.rounds import LOOK
from pfl_node.steps import (
    Ask,
    Average,
    Distill,
    Fetch,
    Gather,
    Linger,
    Peers,
    Publish,
    Receive,
    Report,
    Send,
    Sleep,
    Step,
    Train,
)
from pfl_node.testing.schedules.round_check import RoundCheck
from pfl_node.testing.schedules.rules import Violations
from pfl_node.testing.schedules.shadow_mailbox import FATES, ShadowMailboxes
from pfl_node.testing.schedules.view_check import ViewCheck
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode
    from pfl_node.sim.world import World

FUZZ = 1e-6  # seconds, and parts of a number, that rounding may take
MOVED = 0.01  # seconds that the few bytes of a model may take besides


class Inspector:
    """`attend` to a world before it begins, and `close` when it is over."""

    def __init__(self, findings: Violations, staleness: int = 0) -> None:
        self.findings = findings
        self.ledger = ShadowMailboxes(findings, self._time, staleness)
        self.progress = RoundCheck(findings, self._time)
        self.sight = ViewCheck(findings)
        self._world: World | None = None
        self._busy: set[PeerId] = set()  # whose handler is running
        self._shown: dict[PeerId, float] = {}  # what each node's clock said last
        self._told: dict[PeerId, list[Model]] = {}  # what each published

    def attend(self, world: World) -> None:
        self._world = world
        self.progress.checkpoint_every = world.settings.store.checkpoint_every

    def _time(self) -> float:
        return self._world.clock.now if self._world else 0.0

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    def _node(self, policy: Policy) -> SimNode:
        return self.world.nodes[policy.me]

    def _check(self, rule: str, holds: bool, me: PeerId, text: str) -> None:
        self.findings.check(rule, holds, self._time(), me, text)

    # -- the journal ---------------------------------------------------------------------------------------

    def row(self, node: PeerId | None, event: str, row: Mapping[str, Any]) -> None:
        if node is None:
            return
        if event == "sent" or event in FATES:
            self.ledger.row(node, event, row)
            if event == "taken":
                self._check("handlers", self.world.nodes[node].up, node, "took a message while it was down")
            return
        self.progress.row(node, event, row)
        if event in ("crashed", "finished"):
            self._busy.discard(node)
            self.ledger.forget(node, event, len(self.world.nodes[node].mailbox))
            self.sight.went(self._time())

    # -- the policy ----------------------------------------------------------------------------------------

    def restored(self, policy: Policy) -> None:
        self.progress.restored(policy)

    def handles(self, policy: Policy, offer: Offer | None) -> None:
        me = policy.me
        self._check("handlers", me not in self._busy, me, "a handler began before the last one was done")
        self._busy.add(me)
        if offer:
            self.ledger.received(me, (offer,))
            self._offers(me, (offer,))

    def handled(self, policy: Policy) -> None:
        self._busy.discard(policy.me)

    def asks(self, policy: Policy, step: Step[Any]) -> float:
        me, node = policy.me, self._node(policy)
        self._check("handlers", node.up and node.policy is policy, me, f"asks for {type(step).__name__} when down")
        self.progress.seen(policy)
        match step:
            case Send():
                self._model(me, step.model, "a model that is sent")
                self.ledger.sends(me, step)
            case Gather():
                self.ledger.gathers(me, step)
            case Publish():
                self._published(me, step.model)
            case Report():
                self._published(me, step.model)
                self._model(me, step.model, "the model of a Report")
                self.progress.reports(policy, step.round)
        return node.clock.now

    def got(self, policy: Policy, step: Step[Any], answer: Any, asked: float) -> None:
        me = policy.me
        by = partial(self._by, me, type(step).__name__, asked)
        world = self.world
        patience = world.settings.round.patience
        calls = partial(by, world.settings.wire.base_timeout, MOVED)
        match step:
            case Sleep():
                by(step.seconds)
                self._slept(me, answer)
            case Peers():
                fine = list(answer) == sorted(set(answer)) and me not in answer and set(answer) <= set(world.nodes)
                self._check("asked", fine, me, f"Peers answered {answer}")
            case Send():
                calls()
                self.ledger.acknowledged(me, step, answer)
            case Gather():
                by(patience if step.patience is None else step.patience)
                self.ledger.gathered(me, step, answer, world.views.alive(me))
                self._offers(me, answer)
            case Receive():
                by(patience if step.patience is None else step.patience)
                self.ledger.received(me, answer)
                self._offers(me, answer)
            case Fetch():
                calls()
                self._fetched(me, step, answer)
            case Ask():
                calls()
                self._check("asked", set(answer) <= set(step.peers), me, f"Ask was answered by {sorted(answer)}")
            case Average():
                self._averaged(me, step, answer)
            case Train() | Distill():
                self._model(me, answer, f"what came of a {type(step).__name__}", like=step.model)
            case Linger():
                self._lingered(me, step, asked)

    # -- rules ---------------------------------------------------------------------------------------------

    def _by(self, me: PeerId, step: str, asked: float, seconds: float, room: float = FUZZ) -> None:
        """It was answered in time, by the node's own clock."""
        due = self.world.nodes[me].clock.when(asked + seconds)
        told = f"{step} took {self._time() - due:.3f} s longer than the {seconds:g} s it may"
        self._check("deadline", self._time() <= due + room, me, told)

    def _slept(self, me: PeerId, woke: float) -> None:
        clock = self.world.nodes[me].clock
        before = self._shown.get(me, 0.0)
        self._shown[me] = woke
        self._check("clock", woke >= before, me, f"the clock went back from {before} to {woke} s")
        self._check("clock", abs(woke - clock.now) < FUZZ, me, f"Sleep said {woke}, the clock says {clock.now}")

    def _lingered(self, me: PeerId, step: Linger, asked: float) -> None:
        """As long as somebody gets on, and no longer than it was asked to."""
        clock, linger = self.world.nodes[me].clock, self.world.settings.round.linger
        if step.seconds is not None:
            self._by(me, "Linger", asked, step.seconds)
        if clock is self.world.clock:  # with another one cannot say when others got on
            late = self._time() - (max(asked, self.progress.last) + linger + LOOK)
            self._check("deadline", late <= FUZZ, me, f"Linger took {late:.3f} s too long")

    def _averaged(self, me: PeerId, step: Average, answer: Model) -> None:
        self._model(me, answer, "an average", like=step.mine)
        usable = [m.vector for m in step.models if m.layout == step.mine.layout and m.is_finite()]
        if not usable or answer.layout != step.mine.layout:
            return
        low, high = np.minimum.reduce(usable), np.maximum.reduce(usable)
        room = FUZZ * (1 + np.maximum(np.abs(low), np.abs(high)))
        within = bool(((answer.vector >= low - room) & (answer.vector <= high + room)).all())
        self._check("average", within, me, f"an average of {len(usable)} models lies outside of them")

    def _fetched(self, me: PeerId, step: Fetch, offers: tuple[Offer, ...]) -> None:
        senders = [o.sender for o in offers]
        fine = len(senders) == len(set(senders)) and set(senders) <= set(step.peers)
        self._check("asked", fine, me, f"Fetch of {list(step.peers)} brought models of {senders}")
        self._offers(me, offers)
        for offer in offers:
            part = offer.model.layout.part
            told = [m.vector if part in ("model", "predictions") else m.of(part).vector for m in self._of(offer)]
            same = any(np.array_equal(vector, offer.model.vector) for vector in told)
            self._check("asked", same, me, f"fetched a {part} that {offer.sender} never told")

    def _of(self, offer: Offer) -> list[Model]:
        predictions = offer.model.layout.part == "predictions"
        told = reversed(self._told.get(offer.sender, []))
        return [m for m in told if (m.layout.part == "predictions") is predictions]

    def _published(self, me: PeerId, model: Model) -> None:
        self._told.setdefault(me, []).append(model)

    def _offers(self, me: PeerId, offers: tuple[Offer, ...]) -> None:
        for offer in offers:
            self._check("asked", offer.sender != me, me, "got a model of its own")
            self._model(me, offer.model, f"a model of {offer.sender}")

    def _model(self, me: PeerId, model: Model, what: str, like: Model | None = None) -> None:
        learner = self.world.nodes[me].learner
        part = model.layout.part
        layout = learner.predictions if part == "predictions" else learner.layout.of(part)
        self._check("model", model.is_finite(), me, f"{what} is not finite")
        fine = model.layout == (like.layout if like else layout) and model.vector.size == model.layout.size
        self._check("model", fine, me, f"{what} is of another layout")

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing happens any more."""
        self.ledger.close()
        told = "no round was reported: end each round with `await Report(t, self.model)`"
        someone = any(node.state != "crashed" for node in self.world.nodes.values())
        self.findings.check("finishes", self.progress.rounds > 0 or not someone, self._time(), None, told)
        for id, node in self.world.nodes.items():
            if node.state != "crashed":
                told = f"is {node.state} in round {node.policy.round} of {node.policy.rounds}"
                self._check("finishes", node.state == "left" and not node.policy.more, id, told)
                self._model(id, node.policy.model, "the model in the end")
            box, limits = node.mailbox, node.mailbox.limits
            self._check(
                "bounds", (box.size == 0) is (box.held == 0), id, f"{box.held} models are {box.size} bytes"
            )
            fine = len(box) <= limits.inbox and box.held - len(box) <= limits.shelves
            self._check("bounds", fine, id, f"{box.held} models wait")
