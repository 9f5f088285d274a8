"""Received models that wait for the policy, and the rules of admission. Pure.

A model with a round waits for that round's Gather; one without a round waits in the inbox.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from pfl_node.errors import Reason, Refused
from pfl_node.settings import ServeSettings
from pfl_node.types import Offer, Part, PeerId, expected_vectors, parts_of


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait. Excess messages are refused; a message that was accepted is never dropped."""

    per_peer: int = 2  # models of one peer in the inbox
    inbox: int = 64  # models in the inbox in total
    ahead: int = 16  # rounds by which a peer may be ahead
    round_models: int = 2048  # models for this and future rounds in total
    size: int = 1 << 30  # bytes of models in total, half of it for future rounds; a single model may be larger
    size_per_peer: int = 1 << 28  # bytes of one peer; a single model may be larger
    peers: int = 4096  # peers whose last round is remembered; the least recently heard are dropped first
    late: int = 0  # rounds by which a model may be late; it is used in the current round


def limits_of(serve: ServeSettings, late: int = 0) -> Limits:
    return Limits(serve.per_peer, serve.inbox, size=serve.waiting, size_per_peer=serve.waiting_per_peer, late=late)


class MailboxObserver(Protocol):
    """Follows the models that have a round."""

    def arrives(self, peer: PeerId, round: int) -> None:
        """A model was admitted and begins to arrive."""

    def stopped(self, peer: PeerId, round: int, *, resumes: bool) -> None:
        """It did not arrive; if it `resumes`, the sender may continue it."""

    def arrived(self, peer: PeerId, round: int) -> None:
        """A model has arrived, in time or late, or was refused because it is stale."""


class NoObserver:
    """Does nothing."""

    def arrives(self, peer: PeerId, round: int) -> None: ...
    def stopped(self, peer: PeerId, round: int, *, resumes: bool) -> None: ...
    def arrived(self, peer: PeerId, round: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """The peers of a round that is over."""

    asked: frozenset[PeerId]
    arrived: frozenset[PeerId]
    others: bool  # models of other peers were accepted too


class LateArrivals:
    """Peers whose model for a closed round may still be accepted: those we waited for and did not hear from. Each
    peer counts once per round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds  # number of rounds by which a model may be late; 0: late models are refused
        self._closed: dict[int, ClosedRound] = {}

    def close(self, round: int, asked: Iterable[PeerId], arrived: Iterable[PeerId], *, others: bool) -> None:
        if self.rounds:
            self._closed[round] = ClosedRound(frozenset(asked), frozenset(arrived), others)

    def dump(self) -> dict[int, Any]:
        return {round: (c.asked, c.arrived, c.others) for round, c in self._closed.items()}

    def load(self, rows: Mapping[int, Any]) -> None:
        self._closed = {round: ClosedRound(*row) for round, row in rows.items()}

    def owes(self, peer: PeerId, round: int) -> bool:
        closed = self._closed.get(round)
        return closed is not None and peer not in closed.arrived and (closed.others or peer in closed.asked)

    def late_used(self, round: int, peers: Iterable[PeerId]) -> None:
        """Their late models were used."""
        if closed := self._closed.get(round):
            self._closed[round] = replace(closed, arrived=closed.arrived.union(peers))

    def __contains__(self, round: int) -> bool:
        return round in self._closed

    def forget(self, before: int) -> None:
        for old in [r for r in self._closed if r < before]:
            del self._closed[old]


class Mailbox:
    """Models that were received and not used yet."""

    def __init__(
        self,
        limits: Limits | None = None,
        takes: tuple[Part, ...] = ("model",),
        vectors: Mapping[str, Part] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.takes = takes  # parts that the policy accepts
        self.vectors = vectors or {}  # vectors that must accompany each model
        self.round = 0  # earlier rounds are closed
        self.observer: MailboxObserver = NoObserver()
        self._inbox: deque[Offer] = deque()
        self._by_round: dict[int, dict[PeerId, Offer]] = {}
        self._latest: dict[PeerId, int] = {}  # the last round that a peer is known to have begun
        self._stale_for: set[PeerId] = set()  # peers that refused my model as stale since the last round
        self._in_flight: Counter[tuple[PeerId, int | None]] = Counter()  # admitted, not received yet
        self._sizes: dict[tuple[PeerId, int | None], int] = {}  # bytes of the models in flight
        self._waiting: Counter[PeerId] = Counter()  # bytes waiting or in flight
        self._unusable: set[tuple[PeerId, int]] = set()  # peers whose model for the round was unusable
        self._late = LateArrivals(self.limits.late)

    def admit(
        self,
        sender: PeerId,
        round: int | None,
        part: Part = "model",
        size: int = 0,
        vectors: Mapping[str, Part] | None = None,
    ) -> None:
        """Called with the header, before the payload is read; raises Refused. A `put` or `cancel` must follow."""
        self._check_part(sender, part)
        self._check_vectors(sender, part, vectors or {})
        self._check_size(sender, size, round)
        if round is not None:
            self._check_round(sender, round)
            self._check_round_models(sender, round)
        else:
            self._check_inbox(sender)
        self._in_flight[sender, round] += 1
        self._sizes[sender, round] = self._sizes.get((sender, round), 0) + size
        self._waiting[sender] += size
        if round is not None:
            self.observer.arrives(sender, round)

    def put(self, offer: Offer) -> None:
        """Store an admitted model. If its round ended during the transfer, it is refused after all."""
        self._landed(offer.sender, offer.round)
        self._check_part(offer.sender, offer.model.layout.part)
        self._check_vectors(offer.sender, offer.model.layout.part, parts_of(offer.vectors))
        if offer.round is None:
            self._inbox.append(offer)
        else:
            self._check_round(offer.sender, offer.round)
            offers = self._by_round.setdefault(offer.round, {})
            if old := offers.get(offer.sender):
                self._release_all((old,))
            offers[offer.sender] = offer
            self.observer.arrived(offer.sender, offer.round)
        self._waiting[offer.sender] += offer.nbytes

    def cancel(self, sender: PeerId, round: int | None, *, resumes: bool = False) -> None:
        """An admitted model did not arrive; if it `resumes`, the sender may continue it."""
        self._landed(sender, round)
        if round is not None:
            self.observer.stopped(sender, round, resumes=resumes)

    def _landed(self, sender: PeerId, round: int | None) -> None:
        left = self._in_flight[sender, round] - 1
        size = self._sizes.get((sender, round), 0)
        share = size if left <= 0 else size // (left + 1)
        self._release(sender, share)
        if left <= 0:
            del self._in_flight[sender, round]
            self._sizes.pop((sender, round), None)
        else:
            self._in_flight[sender, round] = left
            self._sizes[sender, round] = size - share

    def mark_unusable(self, sender: PeerId, round: int | None) -> None:
        """The peer's model for this round is unusable, and no other will follow: do not wait for it."""
        if round is not None and self.round <= round <= self.round + self.limits.ahead:
            self._unusable.add((sender, round))

    def take(self, n: int = 1) -> tuple[Offer, ...]:
        """Up to n models of the inbox, oldest first."""
        taken = tuple(self._inbox.popleft() for _ in range(min(n, len(self._inbox))))
        self._release_all(taken)
        return taken

    def missing(
        self, peers: Iterable[PeerId], round: int, rumoured: Mapping[PeerId, int] | None = None
    ) -> list[PeerId]:
        """Peers whose model for the round can still arrive: it is not here, the round is open, and it is arriving
        or the peer is not in a later round (peers begin to send before they advance). Rounds that are only
        `rumoured` are not stored, because a forged rumour is refuted later."""
        if round < self.round:
            return []
        offers, rounds = self._by_round.get(round, {}), {} if rumoured is None else rumoured
        return [
            p
            for p in peers
            if p not in offers
            and (p, round) not in self._unusable
            and (max(self._latest.get(p, 0), rounds.get(p, 0)) <= round or (p, round) in self._in_flight)
        ]

    def here(self, peers: Iterable[PeerId], round: int) -> int:
        """How many of these peers have sent a model for the round."""
        offers = self._by_round.get(round, {})
        return sum(p in offers for p in peers)

    def collect(self, peers: Iterable[PeerId], round: int, *, others: bool = False) -> tuple[Offer, ...]:
        """The models of these peers for the round, then those of `others` by id, then the newest late model of
        each sender that has nothing newer. Closes the round."""
        offers = self._by_round.pop(round, {})
        self._release_all(offers.values())
        wanted = dict.fromkeys(peers)
        found = {p: offers[p] for p in wanted if p in offers}
        if others:
            found |= {p: offers[p] for p in sorted(offers) if p not in wanted}
        if round >= self.round:
            self._late.close(round, wanted, found, others=others)
        late: dict[PeerId, Offer] = {}
        for old in sorted(r for r in self._by_round if r < round):
            late |= (brought := self._by_round.pop(old))
            self._late.late_used(old, brought)
            self._release_all(brought.values())
        self.advance(round + 1)
        return (*found.values(), *(late[p] for p in sorted(late) if p not in found))

    def advance(self, round: int) -> None:
        """Close the rounds before this one. Late models for them wait as long as lateness is allowed."""
        self.round = max(self.round, round)
        self._late.forget(self.round - self.limits.late)
        for old in [r for r in self._by_round if r < self.round and r not in self._late]:
            self._release_all(self._by_round.pop(old).values())
        if self._unusable:
            self._unusable = {(p, r) for p, r in self._unusable if r >= self.round}

    def refused_as_stale(self, peer: PeerId, round: int | None = None) -> None:
        """The peer refused a model of my round as stale, so it advanced without me; it may have reported its own
        round."""
        self.began(peer, max(self.round + 1, round or 0))
        self._stale_for.add(peer)

    def round_to_catch_up(self, round: int, alive: Mapping[PeerId, int], *, absent: bool = False) -> int | None:
        """After a round: the round to continue with if others advanced without me, else None. `alive` has the
        rounds of peers.

        A peer that is merely ahead has waited for my models, so only peers that refused my model as stale count.
        The answer is the round that at least half of the known peers have begun. A node that was `absent` accepts
        any round, like a new node; other nodes accept only rounds for which they accept models.
        """
        if not self._stale_for:
            return None
        self._stale_for.clear()
        typical = self._typical(alive, absent=absent)
        return typical if typical > round + 1 else None

    def will_skip_ahead(self, round: int, alive: Callable[[], Mapping[PeerId, int]]) -> bool:
        """While a round waits: whether this node will skip ahead after it. Peers that can still arrive are behind
        as well, and would wait for each other in every round."""
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
    def arriving(self) -> bool:
        """Whether a model is on its way to the inbox."""
        return any(round is None for _, round in self._in_flight)

    @property
    def held(self) -> int:
        """Waiting models in total."""
        return len(self._inbox) + sum(len(s) for s in self._by_round.values())

    @property
    def size(self) -> int:
        """Bytes of models that wait or are in flight."""
        return self._waiting.total()

    def waiting_from(self, sender: PeerId) -> int:
        """Models of this peer in the inbox, or on their way to it."""
        return sum(1 for o in self._inbox if o.sender == sender) + self._in_flight[sender, None]

    def began(self, peer: PeerId, round: int) -> None:
        """Record the round that a peer claims, limited to the rounds for which its models would be accepted."""
        believed = min(round, self.round + self.limits.ahead)
        self._latest[peer] = max(self._latest.pop(peer, 0), believed)
        if len(self._latest) > self.limits.peers:
            del self._latest[next(iter(self._latest))]

    def dump(self) -> dict[str, Any]:
        """The state for the next segment of a simulation. No message is in flight then."""
        return {
            "round": self.round,
            "inbox": list(self._inbox),
            "shelves": {round: dict(offers) for round, offers in self._by_round.items()},
            "latest": dict(self._latest),
            "stale_for": sorted(self._stale_for),
            "spoiled": sorted(self._unusable),
            "late": self._late.dump(),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        self.round = row["round"]
        self._inbox = deque(row["inbox"])
        self._by_round = {round: dict(offers) for round, offers in row["shelves"].items()}
        self._latest = dict(row["latest"])
        self._stale_for = set(row["stale_for"])
        self._unusable = set(row["spoiled"])
        self._late.load(row["late"])
        self._waiting = Counter()
        for offer in (*self._inbox, *(o for offers in self._by_round.values() for o in offers.values())):
            self._waiting[offer.sender] += offer.nbytes

    def _check_part(self, sender: PeerId, part: Part) -> None:
        if not self.takes:
            raise Refused(Reason.NOT_SERVED, "this node's policy accepts no pushed models", sender)
        if part not in self.takes:
            raise Refused(Reason.LAYOUT, f"this policy accepts {' or '.join(self.takes)}, not {part}", sender)

    def _check_vectors(self, sender: PeerId, part: Part, given: Mapping[str, Part]) -> None:
        if given or self.vectors:
            check_vectors(sender, given, expected_vectors(self.vectors, part))

    def _check_size(self, sender: PeerId, size: int, round: int | None) -> None:
        """Half of the space is reserved for the current round; otherwise a few peers could fill it with models for
        future rounds."""
        mine, all = self._waiting[sender], self._waiting.total()
        room = self.limits.size if round is None or round <= self.round else self.limits.size // 2
        if mine and mine + size > self.limits.size_per_peer:
            raise Refused(Reason.FLOOD, f"{mine} bytes of your models are still waiting; slow down", sender)
        if all and all + size > room:
            raise Refused(Reason.FLOOD, f"{all} bytes of models are waiting here; try again later", sender)

    def _release_all(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self._release(offer.sender, offer.nbytes)

    def _release(self, peer: PeerId, size: int) -> None:
        self._waiting[peer] -= size
        if self._waiting[peer] <= 0:
            del self._waiting[peer]

    def _check_inbox(self, sender: PeerId) -> None:
        waiting = self.waiting_from(sender)
        if waiting >= self.limits.per_peer:
            raise Refused(Reason.FLOOD, f"{waiting} of your models are still waiting; slow down", sender)
        coming = sum(n for (_, round), n in self._in_flight.items() if round is None)
        if len(self._inbox) + coming >= self.limits.inbox:
            raise Refused(Reason.FLOOD, f"the inbox is full ({self.limits.inbox} models)", sender)

    def _check_round_models(self, sender: PeerId, round: int) -> None:
        if self._in_flight[sender, round]:
            raise Refused(Reason.FLOOD, f"another of your models for round {round} is being received", sender)
        coming = sum(n for (_, round), n in self._in_flight.items() if round is not None)
        if sum(len(s) for s in self._by_round.values()) + coming >= self.limits.round_models:
            raise Refused(Reason.FLOOD, f"too many models for coming rounds ({self.limits.round_models})", sender)

    def _check_round(self, sender: PeerId, round: int) -> None:
        self.began(sender, round)
        if round < self.round and not self._late.owes(sender, round):
            self.observer.arrived(sender, round)
            text = f"round {round} is over, the current round is {self.round}"
            raise Refused(Reason.STALE_ROUND, text, sender, round=self.round)
        if round > self.round + self.limits.ahead:
            raise Refused(
                Reason.FUTURE_ROUND,
                f"round {round} is more than {self.limits.ahead} rounds ahead of {self.round}",
                sender,
            )


def check_vectors(sender: PeerId, given: Mapping[str, Part], expected: Mapping[str, Part]) -> None:
    """Raises Refused unless exactly the expected vectors are beside the model."""
    if given == expected:
        return
    here, there = (", ".join(f"{name} ({part})" for name, part in v.items()) or "none" for v in (expected, given))
    raise Refused(Reason.LAYOUT, f"vectors beside the model: {there}; this policy expects {here}", sender)
