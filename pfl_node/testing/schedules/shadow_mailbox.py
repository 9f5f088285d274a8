"""A second, simple mailbox beside each real one, fed from the network and the policies. The two must agree."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfl_node.model import Model, PartialModel
from pfl_node.steps import Gather, Send
from pfl_node.testing.schedules.rules import Violations
from pfl_node.types import Offer, PeerId

Route = tuple[PeerId, PeerId, int | None]  # sender, receiver, round
FATES = ("taken", "refused", "lost")
ROUNDING = {"fp16": 2**-11, "int8": 1 / 253}  # largest error of an encoding, as a part of the largest number


@dataclass
class ShadowBox:
    """The senders of the models that wait at a node."""

    inbox: deque[PeerId] = field(default_factory=deque)
    by_round: dict[int, set[PeerId]] = field(default_factory=dict)
    late: dict[int, set[PeerId]] = field(default_factory=dict)  # accepted after the round
    floor: int = 0  # earlier rounds are closed

    @property
    def held(self) -> int:
        return len(self.inbox) + sum(map(len, self.by_round.values())) + sum(map(len, self.late.values()))


class ShadowMailboxes:
    def __init__(self, violations: Violations, staleness: int) -> None:
        self.boxes: dict[PeerId, ShadowBox] = {}
        self.counts: Counter[str] = Counter()  # messages by outcome
        self._check = violations.check
        self._staleness = staleness  # rounds by which a model may be late
        self.rounding = 0.0  # of `wire.encoding`
        self._in_flight: Counter[tuple[str, *Route]] = Counter()
        self._taken: Counter[Route] = Counter()
        self._acknowledged: Counter[Route] = Counter()
        self._models: dict[Route, list[Model]] = {}  # sent and not delivered to a policy yet

    def box(self, node: PeerId) -> ShadowBox:
        return self.boxes.setdefault(node, ShadowBox())

    # -- the network ---------------------------------------------------------------------------------------

    def row(self, node: PeerId, event: str, row: Mapping[str, Any]) -> None:
        call, round = row["call"], row["round"]
        if event == "sent":
            self._in_flight[call, node, row["to"], round] += 1
            self.counts["sent"] += 1
            return
        route: Route = (node, row["to"], round) if event == "lost" else (row["from"], node, round)
        left = self._in_flight[call, *route] = self._in_flight[call, *route] - 1
        self._check("fate", left >= 0, node, f"a {call} from {route[0]} was {event} that was never sent")
        self.counts[event] += 1
        if event == "refused":
            self.counts[f"refused as {row['reason']}"] += 1
        if event == "taken" and call == "send":
            self._take(*route)

    def _take(self, sender: PeerId, node: PeerId, round: int | None) -> None:
        box = self.box(node)
        self._taken[sender, node, round] += 1
        if round is None:
            box.inbox.append(sender)
            return
        over = round < box.floor
        oldest = box.floor - self._staleness
        self._check("delivered", round >= oldest, node, f"accepted a model of round {round} in round {box.floor}")
        senders = (box.late if over else box.by_round).setdefault(round, set())
        self.counts["replaced"] += sender in senders
        senders.add(sender)

    # -- senders ------------------------------------------------------------------------------------

    def sends(self, me: PeerId, step: Send) -> None:
        for peer in dict.fromkeys(step.to):
            self._models.setdefault((me, peer, step.round), []).append(step.model)

    def acknowledged(self, me: PeerId, step: Send, peers: Collection[PeerId]) -> None:
        strangers = set(peers) - set(step.to)
        self._check(
            "asked", not strangers, me, f"{sorted(strangers)} acknowledged a model that was not sent to them"
        )
        for peer in peers:
            route = (me, peer, step.round)
            self._acknowledged[route] += 1
            self.counts["acknowledged"] += 1
            fine = self._acknowledged[route] <= self._taken[route]
            self._check("acknowledged", fine, me, f"{peer} acknowledged a model that it did not accept")

    # -- receivers -------------------------------------------------------------------------------------

    def received(self, me: PeerId, offers: Sequence[Offer]) -> None:
        """From the inbox, oldest first."""
        box = self.box(me)
        for offer in offers:
            first = box.inbox.popleft() if box.inbox else None
            text = f"got a model of {offer.sender}; the next in the inbox is of {first or 'no one'}"
            self._check("delivered", first == offer.sender and offer.round is None, me, text)
            self._deliver(me, offer)

    def gathers(self, me: PeerId, step: Gather) -> None:
        self._close_rounds(self.box(me), step.round)

    def gathered(self, me: PeerId, step: Gather, offers: Sequence[Offer], known: Collection[PeerId]) -> None:
        box = self.box(me)
        senders = box.by_round.pop(step.round, set())
        wanted = [p for p in dict.fromkeys(step.peers) if p in senders]
        if step.others:
            wanted += sorted(p for p in senders if p not in step.peers and p in known)
        late: dict[PeerId, int] = {}  # the newest of each sender
        for round in sorted(box.late):
            late |= dict.fromkeys(box.late[round], round)
        expected = [(p, step.round) for p in wanted]
        expected += [(p, late[p]) for p in sorted(late) if p not in wanted and (p in known or p in step.peers)]
        got = [(o.sender, o.round) for o in offers]
        text = f"Gather of round {step.round} got {got}, but {expected} had been accepted for it"
        self._check("delivered", got == expected, me, text)
        for offer in offers:
            self._deliver(me, offer)
        self.counts["not asked for"] += len(senders) - len(wanted)
        box.late.clear()
        self._close_rounds(box, step.round + 1)

    def _deliver(self, me: PeerId, offer: Offer) -> None:
        """The model is one that its sender sent and that was not delivered before."""
        self.counts["delivered"] += 1
        sent = self._models.get((offer.sender, me, offer.round), [])
        place = next((i for i, m in enumerate(sent) if is_of(offer.model, m, self.rounding)), None)
        text = f"got a model of {offer.sender} that it did not send, or got it twice"
        if self._check("delivered", place is not None, me, text) and place is not None:
            del sent[place]

    def _close_rounds(self, box: ShadowBox, floor: int) -> None:
        box.floor = max(box.floor, floor)
        for round in [r for r in box.by_round if r < box.floor]:
            self.counts["too old"] += len(box.by_round.pop(round))
        for round in [r for r in box.late if r < box.floor - self._staleness]:
            self.counts["too old"] += len(box.late.pop(round))

    # -- nodes that leave --------------------------------------------------------------------------------------

    def forget(self, node: PeerId, why: str, inbox: int) -> None:
        """The node crashed or left, with `inbox` models in its inbox."""
        text = f"the inbox of a node that {why} holds {inbox} models, not {len(self.box(node).inbox)}"
        self._check("delivered", inbox == len(self.box(node).inbox), node, text)
        self.counts[f"waiting when the node {why}"] += self.box(node).held
        self.boxes[node] = ShadowBox()

    def close(self) -> None:
        left = sum(n for n in self._in_flight.values() if n > 0)
        self._check("fate", left == 0, None, f"{left} messages vanished: neither accepted, refused nor lost")


def is_of(came: Model, sent: Model, rounding: float) -> bool:
    """Whether a received model has the numbers of the one that was sent; a partial one has some of them."""
    if came.numbers is sent.numbers:
        return True
    if came.layout != sent.layout:
        return False
    if isinstance(sent, PartialModel):
        if not isinstance(came, PartialModel) or not np.array_equal(came.indices, sent.indices):
            return False
        numbers = sent.values
    else:
        numbers = sent.vector[came.indices] if isinstance(came, PartialModel) else sent.vector
    room = rounding * float(np.abs(sent.numbers).max(initial=0.0))
    return bool((np.abs(came.numbers - numbers) <= room).all())
