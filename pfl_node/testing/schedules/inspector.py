"""Checks a run against the rules: every step of a policy, every answer, every row of the journal."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_node import steps
from pfl_node.model import Model
from pfl_node.node.gather import POLL_INTERVAL
from pfl_node.policies.base import Policy
from pfl_node.sim.intercepted_policy import InterceptedPolicy, P, intercepted
from pfl_node.steps import Average, Fetch, Linger, Step
from pfl_node.store.policy_state import freeze, thaw
from pfl_node.testing.contract.toy_learner import LAYOUT
from pfl_node.testing.schedules.round_check import RoundCheck
from pfl_node.testing.schedules.rules import Violations
from pfl_node.testing.schedules.shadow_mailbox import FATES, ROUNDING, ShadowMailboxes, is_of
from pfl_node.testing.schedules.view_check import ViewCheck
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World

FUZZ = 1e-6  # seconds, and relative error, allowed for rounding
TRANSFER = 0.01  # seconds to transfer a small model


class TracedPolicy(InterceptedPolicy):
    """Shows its steps and answers to an inspector. Its state passes through the checkpoint format before it is
    restored."""

    inspector: Inspector

    def intercept(self, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        began = self.inspector.before_step(self, step)
        answer = yield step
        self.inspector.after_step(self, step, answer, began)
        return answer

    def handler_begins(self, offer: Offer | None) -> None:
        self.inspector.handler_begins(self, offer)

    def handler_ends(self) -> None:
        self.inspector.handler_ends(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        frozen, vectors = freeze(dict(state))
        super().restore(thaw(json.loads(json.dumps(frozen)), vectors, LAYOUT))
        self.inspector.rounds.restored(self)


class Inspector:
    """`attach` it before the run, and `close` it afterwards."""

    def __init__(self, violations: Violations, staleness: int = 0) -> None:
        self._violations = violations
        self._check = violations.check
        self.mailboxes = ShadowMailboxes(violations, staleness)
        self.rounds = RoundCheck(violations)
        self.views = ViewCheck(violations)
        self._world: World | None = None
        self._busy: set[PeerId] = set()  # nodes whose handler is running
        self._clocks: dict[PeerId, float] = {}  # the last time that each node saw
        self._published: dict[PeerId, list[Model]] = {}

    def traced(self, policy: type[P]) -> type[P]:
        return intercepted(policy, TracedPolicy, inspector=self)

    def attach(self, world: World) -> None:
        self._world = world
        self._violations.now = self._time
        self.rounds.checkpoint_every = world.settings.store.checkpoint_every
        self.mailboxes.rounding = ROUNDING.get(world.settings.wire.encoding, 0.0)

    def _time(self) -> float:
        return self.world.clock.now

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    def _node(self, policy: Policy) -> Process:
        return self.world.nodes[policy.me]

    # -- the journal ---------------------------------------------------------------------------------------

    def row(self, node: PeerId | None, event: str, row: Mapping[str, Any]) -> None:
        if node is None:
            return
        if event == "sent" or event in FATES:
            self.mailboxes.row(node, event, row)
            if event == "taken":
                self._check("handlers", self.world.nodes[node].up, node, "accepted a message while it was down")
            return
        self.rounds.row(node, event, row)
        if event in ("crashed", "finished"):
            self._busy.discard(node)
            self.mailboxes.forget(node, event, len(self.world.nodes[node].mailbox))
            self.views.went(self._time())

    # -- the policy ----------------------------------------------------------------------------------------

    def handler_begins(self, policy: Policy, offer: Offer | None) -> None:
        me = policy.me
        self._check("handlers", me not in self._busy, me, "a handler began before the last one ended")
        self._busy.add(me)
        if offer:
            self.mailboxes.received(me, (offer,))
            self._offers(me, (offer,))

    def handler_ends(self, policy: Policy) -> None:
        self._busy.discard(policy.me)

    def before_step(self, policy: Policy, step: Step[Any]) -> float:
        """Returns the time by the node's own clock."""
        me, node = policy.me, self._node(policy)
        self._check(
            "handlers", node.up and node.policy is policy, me, f"awaits {type(step).__name__} while it is down"
        )
        self.rounds.step(policy)
        match step:
            case steps.Send():
                self._model(me, step.model, "a sent model")
                self.mailboxes.sends(me, step)
            case steps.Gather():
                self.mailboxes.gathers(me, step)
            case steps.Publish():
                self._publish(me, step.model)
            case steps.Report():
                self._publish(me, step.model)
                self._model(me, step.model, "the model of a Report")
                self.rounds.reports(policy, step.round)
        return node.clock.now

    def after_step(self, policy: Policy, step: Step[Any], answer: Any, began: float) -> None:
        me = policy.me
        by = partial(self._by, me, type(step).__name__, began)
        world = self.world
        patience = world.settings.round.patience
        calls = partial(by, world.settings.wire.base_timeout, TRANSFER)
        match step:
            case steps.Sleep():
                by(step.seconds)
                self._slept(me, answer)
            case steps.Peers():
                fine = list(answer) == sorted(set(answer)) and me not in answer and set(answer) <= set(world.nodes)
                self._check("asked", fine, me, f"Peers answered {answer}")
            case steps.Send():
                calls()
                self.mailboxes.acknowledged(me, step, answer)
            case steps.Gather():
                by(patience if step.patience is None else step.patience)
                self.mailboxes.gathered(me, step, answer, world.detector.alive(me))
                self._offers(me, answer)
            case steps.Receive():
                by(patience if step.patience is None else step.patience)
                self.mailboxes.received(me, answer)
                self._offers(me, answer)
            case steps.Fetch():
                calls()
                self._fetched(me, step, answer)
            case steps.Ask():
                calls()
                self._check("asked", set(answer) <= set(step.peers), me, f"Ask was answered by {sorted(answer)}")
            case steps.Average():
                self._averaged(me, step, answer)
            case steps.Train() | steps.Distill() | steps.Gradient():
                self._model(me, answer, f"the result of a {type(step).__name__}", like=step.model)
            case steps.Linger():
                self._lingered(me, step, began)

    # -- rules ---------------------------------------------------------------------------------------------

    def _by(self, me: PeerId, step: str, began: float, seconds: float, room: float = FUZZ) -> None:
        """The step took at most so many seconds by the node's own clock."""
        due = self.world.nodes[me].clock.when(began + seconds)
        text = f"{step} took {self._time() - due:.3f} s longer than its limit of {seconds:g} s"
        self._check("deadline", self._time() <= due + room, me, text)

    def _slept(self, me: PeerId, woke: float) -> None:
        clock = self.world.nodes[me].clock
        before = self._clocks.get(me, 0.0)
        self._clocks[me] = woke
        self._check("clock", woke >= before, me, f"the clock went back from {before} to {woke} s")
        self._check(
            "clock", abs(woke - clock.now) < FUZZ, me, f"Sleep returned {woke}, the clock shows {clock.now}"
        )

    def _lingered(self, me: PeerId, step: Linger, began: float) -> None:
        """While other nodes make progress, and no longer than requested."""
        clock, linger = self.world.nodes[me].clock, self.world.settings.round.linger
        if step.seconds is not None:
            self._by(me, "Linger", began, step.seconds)
        if clock is self.world.clock:  # a skewed clock cannot be compared with the progress of others
            heard = self.world.costs.news + self.world.conditions.max_delay  # until the others know of a round
            late = self._time() - (max(began, self.rounds.last + heard) + linger + POLL_INTERVAL)
            self._check("deadline", late <= FUZZ, me, f"Linger took {late:.3f} s too long")

    def _averaged(self, me: PeerId, step: Average, answer: Model) -> None:
        self._model(me, answer, "an average", like=step.mine)
        fitting = [m for m in step.models if m.layout == step.mine.layout and m.is_finite()]
        usable = [m.over(step.mine).vector for m in fitting]
        if not usable or answer.layout != step.mine.layout:
            return
        low, high = np.minimum.reduce(usable), np.maximum.reduce(usable)
        room = FUZZ * (1 + np.maximum(np.abs(low), np.abs(high)))
        within = bool(((answer.vector >= low - room) & (answer.vector <= high + room)).all())
        self._check("average", within, me, f"the average of {len(usable)} models lies outside their range")

    def _fetched(self, me: PeerId, step: Fetch, offers: tuple[Offer, ...]) -> None:
        senders = [o.sender for o in offers]
        fine = len(senders) == len(set(senders)) and set(senders) <= set(step.peers)
        self._check("asked", fine, me, f"Fetch of {list(step.peers)} brought models of {senders}")
        self._offers(me, offers)
        for offer in offers:
            part = offer.model.layout.part
            models = self._published_by(offer)
            whole = part in ("model", "predictions")
            same = any(is_of(offer.model, m if whole else m.of(part), self.mailboxes.rounding) for m in models)
            self._check("asked", same, me, f"fetched a {part} that {offer.sender} never published")

    def _published_by(self, offer: Offer) -> list[Model]:
        predictions = offer.model.layout.part == "predictions"
        newest_first = reversed(self._published.get(offer.sender, []))
        return [m for m in newest_first if (m.layout.part == "predictions") is predictions]

    def _publish(self, me: PeerId, model: Model) -> None:
        self._published.setdefault(me, []).append(model)

    def _offers(self, me: PeerId, offers: tuple[Offer, ...]) -> None:
        for offer in offers:
            self._check("asked", offer.sender != me, me, "received its own model")
            self._model(me, offer.model, f"a model of {offer.sender}")

    def _model(self, me: PeerId, model: Model, what: str, like: Model | None = None) -> None:
        learner = self.world.nodes[me].learner
        part = model.layout.part
        layout = learner.predictions if part == "predictions" else learner.layout.of(part)
        self._check("model", model.is_finite(), me, f"{what} is not finite")
        fine = model.layout == (like.layout if like else layout)
        self._check("model", fine, me, f"{what} has another layout")

    # -- at the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.mailboxes.close()
        text = "no round was reported: end each round with `await Report(t, self.model)`"
        someone = any(node.state != "crashed" for node in self.world.nodes.values())
        self._check("finishes", self.rounds.rounds > 0 or not someone, None, text)
        for id, node in self.world.nodes.items():
            if node.state != "crashed":
                text = f"is {node.state} in round {node.policy.round} of {node.policy.rounds}"
                self._check("finishes", node.state == "left" and not node.policy.more, id, text)
                self._model(id, node.policy.model, "the final model")
            box, limits = node.mailbox, node.mailbox.limits
            self._check(
                "bounds",
                (box.size == 0) is (box.held == 0),
                id,
                f"{box.held} waiting models have {box.size} bytes",
            )
            fine = len(box) <= limits.inbox and box.held - len(box) <= limits.round_models
            self._check("bounds", fine, id, f"{box.held} models are waiting")
