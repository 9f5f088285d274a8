"""Where models wait for the policy: an inbox, and a shelf per round. Pure; the rules of admission live here.

One consumer for each message: with a round it waits on that round's shelf for a Gather, without one in the inbox.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from pfl_node.errors import Reason, Refused
from pfl_node.protocol.late import LateArrivals
from pfl_node.types import Offer, Part, PeerId


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait. Beyond it a message is refused, never dropped after it was taken."""

    per_peer: int = 2  # models of one peer in the inbox
    inbox: int = 64  # models in the inbox in all
    ahead: int = 16  # rounds a peer may be ahead of me
    shelves: int = 2048  # models for this and coming rounds in all
    size: int = 1 << 30  # bytes of models in all, half of it for coming rounds; a single one may be larger
    size_per_peer: int = 1 << 28  # of one peer; here too
    peers: int = 4096  # whose last round is remembered; those silent for longest are forgotten first
    late: int = 0  # rounds that a model may be late: it is then used in the round that is on


class Serving(Protocol):
    """The part of the `serve` section that matters here."""

    @property
    def per_peer(self) -> int: ...
    @property
    def inbox(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def waiting_per_peer(self) -> int: ...


def limits_of(serve: Serving, late: int = 0) -> Limits:
    return Limits(serve.per_peer, serve.inbox, size=serve.waiting, size_per_peer=serve.waiting_per_peer, late=late)


def nobody(peer: PeerId, round: int) -> None:
    """Who is told of models that come, when nobody is."""


class Mailbox:
    """What came and was not used yet."""

    def __init__(self, limits: Limits | None = None, takes: tuple[Part, ...] = ("model",)) -> None:
        self.limits = limits or Limits()
        self.takes = takes  # the policy cannot use anything else, and must not get it
        self.round = 0  # rounds before this one are over
        self.heard: Callable[[PeerId, int], None] = nobody  # told of every model of a round, also of one too late
        self._inbox: deque[Offer] = deque()
        self._shelves: dict[int, dict[PeerId, Offer]] = {}
        self._latest: dict[PeerId, int] = {}  # the last round I know a peer to have begun
        self._stale_for: set[PeerId] = set()  # who called a model of mine stale since the last round ended
        self._coming: Counter[tuple[PeerId, int | None]] = Counter()  # admitted, still on the wire
        self._sizes: dict[tuple[PeerId, int | None], int] = {}  # bytes of those
        self._waiting: Counter[PeerId] = Counter()  # bytes that wait or are on the wire
        self._spoiled: set[tuple[PeerId, int]] = set()  # whose model for a round came and could not be used
        self._overdue = LateArrivals(self.limits.late)

    def admit(self, sender: PeerId, round: int | None, part: Part = "model", size: int = 0) -> None:
        """Called with the header, before the payload is read; raises Refused. A `put` or `cancel` must follow."""
        self._check_part(sender, part)
        self._check_size(sender, size, round)
        if round is not None:
            self._check_round(sender, round)
            self._check_shelves(sender, round)
        else:
            self._check_inbox(sender)
        self._coming[sender, round] += 1
        self._sizes[sender, round] = self._sizes.get((sender, round), 0) + size
        self._waiting[sender] += size

    def put(self, offer: Offer) -> None:
        """Take what was admitted. A round may have ended while it travelled: then it is refused after all."""
        self.cancel(offer.sender, offer.round)
        self._check_part(offer.sender, offer.model.layout.part)
        if offer.round is None:
            self._inbox.append(offer)
        else:
            self._check_round(offer.sender, offer.round)
            shelf = self._shelves.setdefault(offer.round, {})
            if old := shelf.get(offer.sender):
                self._gone((old,))
            shelf[offer.sender] = offer
            self.heard(offer.sender, offer.round)
        self._waiting[offer.sender] += offer.nbytes

    def cancel(self, sender: PeerId, round: int | None) -> None:
        """What was admitted did not arrive."""
        left = self._coming[sender, round] - 1
        size = self._sizes.get((sender, round), 0)
        share = size if left <= 0 else size // (left + 1)
        self._lighter(sender, share)
        if left <= 0:
            del self._coming[sender, round]
            self._sizes.pop((sender, round), None)
        else:
            self._coming[sender, round] = left
            self._sizes[sender, round] = size - share

    def spoil(self, sender: PeerId, round: int | None) -> None:
        """What came for this round cannot be used, and nothing else will come: it need not be waited for."""
        if round is not None and self.round <= round <= self.round + self.limits.ahead:
            self._spoiled.add((sender, round))

    def take(self, n: int = 1) -> tuple[Offer, ...]:
        """Up to n models of the inbox, oldest first."""
        taken = tuple(self._inbox.popleft() for _ in range(min(n, len(self._inbox))))
        self._gone(taken)
        return taken

    def missing(
        self, peers: Iterable[PeerId], round: int, rumoured: Mapping[PeerId, int] | None = None
    ) -> list[PeerId]:
        """Those whose model for the round can still come: not here yet, the round not over, and the peer not in a
        later one, because it sends before it goes on. Rounds that are only `rumoured` are believed as long as they
        are told, and not kept: what was forged is refuted."""
        if round < self.round:
            return []
        shelf, told = self._shelves.get(round, {}), rumoured or {}
        return [
            p
            for p in peers
            if p not in shelf
            and (p, round) not in self._spoiled
            and max(self._latest.get(p, 0), told.get(p, 0)) <= round
        ]

    def here(self, peers: Iterable[PeerId], round: int) -> int:
        """How many of them have sent for the round."""
        shelf = self._shelves.get(round, {})
        return sum(p in shelf for p in peers)

    def collect(self, peers: Iterable[PeerId], round: int, *, others: bool = False) -> tuple[Offer, ...]:
        """What these peers sent for the round, then what `others` did, by id, then what came late, the newest of
        each sender that has nothing newer; afterwards the round is over and its shelf is cleared."""
        shelf = self._shelves.pop(round, {})
        self._gone(shelf.values())
        wanted = dict.fromkeys(peers)
        found = {p: shelf[p] for p in wanted if p in shelf}
        if others:
            found |= {p: shelf[p] for p in sorted(shelf) if p not in wanted}
        if round >= self.round:
            self._overdue.close(round, wanted, found, others=others)
        late: dict[PeerId, Offer] = {}
        for old in sorted(r for r in self._shelves if r < round):
            late |= (brought := self._shelves.pop(old))
            self._overdue.paid(old, brought)
            self._gone(brought.values())
        self.advance(round + 1)
        return (*found.values(), *(late[p] for p in sorted(late) if p not in found))

    def advance(self, round: int) -> None:
        """Rounds before this one are over. What came late for them waits for as long as it may be late."""
        self.round = max(self.round, round)
        self._overdue.forget(self.round - self.limits.late)
        for old in [r for r in self._shelves if r < self.round and r not in self._overdue]:
            self._gone(self._shelves.pop(old).values())
        if self._spoiled:
            self._spoiled = {(p, r) for p, r in self._spoiled if r >= self.round}

    def overtaken(self, peer: PeerId, round: int | None = None) -> None:
        """The peer called a model of my round stale: it went on without me. It may have told its own round."""
        self.began(peer, max(self.round + 1, round or 0))
        self._stale_for.add(peer)

    def left_behind(self, round: int, alive: Mapping[PeerId, int], *, absent: bool = False) -> int | None:
        """After a round: where to go on when others went on without me, else None. `alive` tells rounds, too.

        A peer that is merely ahead has waited for my models, so only one that called a model of mine stale counts;
        then the round that at least half of those I heard from have begun. One that knows that it was `absent`
        believes any round, as one that comes late does; others only as far as models are taken.
        """
        if not self._stale_for:
            return None
        self._stale_for.clear()
        typical = self._typical(alive, absent=absent)
        return typical if typical > round + 1 else None

    def passed_by(self, round: int, alive: Callable[[], Mapping[PeerId, int]]) -> bool:
        """While a round waits: is it one after which I shall go on elsewhere? Whoever still comes is left behind,
        too, and those would wait for each other in every round on their way."""
        return bool(self._stale_for) and self._typical(alive()) > round + 1

    def _typical(self, alive: Mapping[PeerId, int], *, absent: bool = False) -> int:
        most = inf if absent else self.round + self.limits.ahead
        known = alive if absent else [p for p in alive if p in self._latest]
        rounds = sorted(max(self._latest.get(p, 0), int(min(alive[p], most))) for p in known)
        return rounds[(len(rounds) - 1) // 2] if rounds else 0

    def __len__(self) -> int:
        """Models in the inbox."""
        return len(self._inbox)

    @property
    def held(self) -> int:
        """Models waiting anywhere."""
        return len(self._inbox) + sum(len(s) for s in self._shelves.values())

    @property
    def size(self) -> int:
        """Bytes of models that wait or are on the wire."""
        return self._waiting.total()

    def began(self, peer: PeerId, round: int) -> None:
        """A peer may claim any round; it is believed only as far as its models would be taken."""
        believed = min(round, self.round + self.limits.ahead)
        self._latest[peer] = max(self._latest.pop(peer, 0), believed)
        if len(self._latest) > self.limits.peers:
            del self._latest[next(iter(self._latest))]

    def _check_part(self, sender: PeerId, part: Part) -> None:
        if not self.takes:
            raise Refused(Reason.NOT_SERVED, "this node's policy takes no models; it fetches them", sender)
        if part not in self.takes:
            raise Refused(Reason.LAYOUT, f"{part} came, this policy takes {' or '.join(self.takes)}", sender)

    def _check_size(self, sender: PeerId, size: int, round: int | None) -> None:
        """Half of the room is for what is needed now, or a few could fill it with models for rounds to come."""
        mine, all = self._waiting[sender], self._waiting.total()
        room = self.limits.size if round is None or round <= self.round else self.limits.size // 2
        if mine and mine + size > self.limits.size_per_peer:
            raise Refused(Reason.FLOOD, f"{mine} bytes of yours are still waiting; slow down", sender)
        if all and all + size > room:
            raise Refused(Reason.FLOOD, f"{all} bytes of models are waiting here; try again later", sender)

    def _gone(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self._lighter(offer.sender, offer.nbytes)

    def _lighter(self, peer: PeerId, size: int) -> None:
        self._waiting[peer] -= size
        if self._waiting[peer] <= 0:
            del self._waiting[peer]

    def _check_inbox(self, sender: PeerId) -> None:
        waiting = sum(1 for o in self._inbox if o.sender == sender) + self._coming[sender, None]
        if waiting >= self.limits.per_peer:
            raise Refused(Reason.FLOOD, f"{waiting} models of yours are still waiting; slow down", sender)
        coming = sum(n for (_, round), n in self._coming.items() if round is None)
        if len(self._inbox) + coming >= self.limits.inbox:
            raise Refused(Reason.FLOOD, f"the inbox is full ({self.limits.inbox} models)", sender)

    def _check_shelves(self, sender: PeerId, round: int) -> None:
        if self._coming[sender, round]:
            raise Refused(Reason.FLOOD, f"another model of yours for round {round} is on its way", sender)
        coming = sum(n for (_, round), n in self._coming.items() if round is not None)
        if sum(len(s) for s in self._shelves.values()) + coming >= self.limits.shelves:
            raise Refused(Reason.FLOOD, f"the shelves are full ({self.limits.shelves} models)", sender)

    def _check_round(self, sender: PeerId, round: int) -> None:
        self.began(sender, round)
        if round < self.round and not self._overdue.owes(sender, round):
            self.heard(sender, round)
            text = f"round {round} is over here, now is {self.round}"
            raise Refused(Reason.STALE_ROUND, text, sender, round=self.round)
        if round > self.round + self.limits.ahead:
            raise Refused(
                Reason.FUTURE_ROUND,
                f"round {round} is more than {self.limits.ahead} ahead of {self.round}",
                sender,
            )
