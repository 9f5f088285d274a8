"""What became of every message: a second, simple mailbox beside each real one, fed with what is seen on the
network and at the policies. The two must agree."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_node.model import Model
from pfl_node.steps import Gather, Send
from pfl_node.testing.schedules.rules import Violations
from pfl_node.types import Offer, PeerId

Way = tuple[PeerId, PeerId, int | None]  # from, to, of which round
FATES = ("taken", "refused", "lost")


@dataclass
class ShadowBox:
    """What waits at a node, as far as one can see from outside: who sent it, and for a round which."""

    inbox: deque[PeerId] = field(default_factory=deque)
    shelves: dict[int, set[PeerId]] = field(default_factory=dict)
    late: dict[int, set[PeerId]] = field(default_factory=dict)  # taken when the round was over
    floor: int = 0  # rounds before this one are over

    @property
    def held(self) -> int:
        return len(self.inbox) + sum(map(len, self.shelves.values())) + sum(map(len, self.late.values()))


class ShadowMailboxes:
    """Fed with the rows of the journal and with what policies send and get."""

    def __init__(self, findings: Violations, now: Callable[[], float], staleness: int) -> None:
        self.boxes: dict[PeerId, ShadowBox] = {}
        self.counts: Counter[str] = Counter()  # messages by what became of them
        self._findings = findings
        self._now = now
        self._staleness = staleness  # rounds that a model may be late
        self._flying: Counter[tuple[str, *Way]] = Counter()
        self._taken: Counter[Way] = Counter()
        self._acknowledged: Counter[Way] = Counter()
        self._models: dict[Way, list[Model]] = {}  # sent and not seen at the policy of the receiver yet

    def box(self, node: PeerId) -> ShadowBox:
        return self.boxes.setdefault(node, ShadowBox())

    # -- the network ---------------------------------------------------------------------------------------

    def row(self, node: PeerId, event: str, row: Mapping[str, Any]) -> None:
        call, round = row["call"], row["round"]
        if event == "sent":
            self._flying[call, node, row["to"], round] += 1
            self.counts["sent"] += 1
            return
        way: Way = (node, row["to"], round) if event == "lost" else (row["from"], node, round)
        flying = self._flying[call, *way] = self._flying[call, *way] - 1
        self._check("fate", flying >= 0, node, f"a {call} from {way[0]} was {event} that nobody sent")
        self.counts[event] += 1
        if event == "refused":
            self.counts[f"refused as {row['reason']}"] += 1
        if event == "taken" and call == "send":
            self._take(*way)

    def _take(self, sender: PeerId, node: PeerId, round: int | None) -> None:
        box = self.box(node)
        self._taken[sender, node, round] += 1
        if round is None:
            box.inbox.append(sender)
            return
        over = round < box.floor
        oldest = box.floor - self._staleness
        self._check("delivered", round >= oldest, node, f"took a model of round {round}, now is {box.floor}")
        shelf = (box.late if over else box.shelves).setdefault(round, set())
        self.counts["replaced"] += sender in shelf
        shelf.add(sender)

    # -- those who send ------------------------------------------------------------------------------------

    def sends(self, me: PeerId, step: Send) -> None:
        for peer in dict.fromkeys(step.to):
            self._models.setdefault((me, peer, step.round), []).append(step.model)

    def acknowledged(self, me: PeerId, step: Send, peers: Collection[PeerId]) -> None:
        strangers = set(peers) - set(step.to)
        self._check("asked", not strangers, me, f"{sorted(strangers)} acknowledged what was not sent to them")
        for peer in peers:
            way = (me, peer, step.round)
            self._acknowledged[way] += 1
            self.counts["acknowledged"] += 1
            fine = self._acknowledged[way] <= self._taken[way]
            self._check("acknowledged", fine, me, f"{peer} acknowledged a model that it did not take")

    # -- those who get -------------------------------------------------------------------------------------

    def received(self, me: PeerId, offers: Sequence[Offer]) -> None:
        """From the inbox, oldest first."""
        box = self.box(me)
        for offer in offers:
            first = box.inbox.popleft() if box.inbox else None
            told = f"got a model of {offer.sender}; the next of the inbox is of {first or 'nobody'}"
            self._check("delivered", first == offer.sender and offer.round is None, me, told)
            self._whole(me, offer)

    def gathers(self, me: PeerId, step: Gather) -> None:
        """A Gather begins: earlier rounds are over."""
        self._over(self.box(me), step.round)

    def gathered(self, me: PeerId, step: Gather, offers: Sequence[Offer], known: Collection[PeerId]) -> None:
        box = self.box(me)
        shelf = box.shelves.pop(step.round, set())
        wanted = [p for p in dict.fromkeys(step.peers) if p in shelf]
        if step.others:
            wanted += sorted(p for p in shelf if p not in step.peers and p in known)
        late: dict[PeerId, int] = {}  # the newest of each, of those who have nothing newer
        for round in sorted(box.late):
            late |= dict.fromkeys(box.late[round], round)
        expected = [(p, step.round) for p in wanted]
        expected += [(p, late[p]) for p in sorted(late) if p not in wanted and (p in known or p in step.peers)]
        got = [(o.sender, o.round) for o in offers]
        told = f"Gather of round {step.round} got {got}, and {expected} had been taken for it"
        self._check("delivered", got == expected, me, told)
        for offer in offers:
            self._whole(me, offer)
        self.counts["not asked for"] += len(shelf) - len(wanted)
        box.late.clear()
        self._over(box, step.round + 1)

    def _whole(self, me: PeerId, offer: Offer) -> None:
        """It is what its sender sent, and each is used up once."""
        self.counts["delivered"] += 1
        sent = self._models.get((offer.sender, me, offer.round), [])
        place = next((i for i, m in enumerate(sent) if _same(m, offer.model)), None)
        told = f"got a model of {offer.sender} that it did not send, or got it before"
        if self._check("delivered", place is not None, me, told) and place is not None:
            del sent[place]

    def _over(self, box: ShadowBox, floor: int) -> None:
        box.floor = max(box.floor, floor)
        for round in [r for r in box.shelves if r < box.floor]:
            self.counts["too old"] += len(box.shelves.pop(round))
        for round in [r for r in box.late if r < box.floor - self._staleness]:
            self.counts["too old"] += len(box.late.pop(round))

    # -- those who go --------------------------------------------------------------------------------------

    def forget(self, node: PeerId, why: str, inbox: int) -> None:
        """The node crashed or left, and what waited there with it; so many were in its inbox."""
        told = f"{inbox} models wait in the inbox of a node that {why}, and {len(self.box(node).inbox)} were taken"
        self._check("delivered", inbox == len(self.box(node).inbox), node, told)
        self.counts[f"waiting when the node {why}"] += self.box(node).held
        self.boxes[node] = ShadowBox()

    def close(self) -> None:
        """The run is over: nothing is on its way."""
        left = sum(n for n in self._flying.values() if n > 0)
        self._check("fate", left == 0, None, f"{left} messages vanished: neither taken, refused nor lost")

    def _check(self, rule: str, holds: bool, node: PeerId | None, text: str) -> bool:
        return self._findings.check(rule, holds, self._now(), node, text)


def _same(sent: Model, came: Model) -> bool:
    return sent.vector is came.vector or (
        sent.layout.part == came.layout.part and bool((sent.vector == came.vector).all())
    )
