"""Members known from rumours only: each is pinged, and becomes a member when it answers.

So a sender cannot fill a view with invented members. The number of open pings is bounded, in total and per source.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from pfl_node.membership.member import Member
from pfl_node.membership.packet import Kind, Packet

SHARE = 4  # one source may have a quarter of all candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    id: str
    address: str
    source: str
    until: float


class Candidates:
    def __init__(self, rng: Random, timeout: float, limit: int) -> None:
        self._rng = rng
        self._limit = limit
        self._timeout = timeout  # seconds after which a candidate that does not answer may be pinged again
        self._pinged: dict[int, Candidate] = {}  # by sequence number, the oldest first
        self._by_source: Counter[str] = Counter()
        self._keys: set[tuple[str, str]] = set()  # id and address
        self._silent: set[tuple[str, str]] = set()  # id and address of those that did not answer

    def ask(self, member: Member, source: str, now: float) -> int | None:
        """The sequence number for a ping; None if it was pinged recently or its source has too many candidates."""
        while self._pinged and (oldest := next(iter(self._pinged.items())))[1].until <= now:
            self._drop(oldest[0])
            if len(self._silent) >= self._limit:
                self._silent.clear()
            self._silent.add((oldest[1].id, oldest[1].address))
        key = (member.id, member.address)
        if key in self._keys or len(self._pinged) >= self._limit:
            return None
        if self._by_source[source] >= self._limit // SHARE:
            return None
        seq = self._rng.getrandbits(62) | 1 << 62  # above the prober's numbers, and hard to guess
        self._pinged[seq] = Candidate(member.id, member.address, source, now + self._timeout)
        self._by_source[source] += 1
        self._keys.add(key)
        return seq

    def silent(self, member: Member) -> bool:
        """Was a previous ping to it not answered?"""
        return (member.id, member.address) in self._silent

    def answered(self, packet: Packet) -> bool:
        """Is this a candidate's answer to its ping?"""
        found = self._pinged.get(packet.seq) if packet.kind is Kind.ACK else None
        if found is None or (found.id, found.address) != (packet.sender.id, packet.sender.address):
            return False
        self._drop(packet.seq)
        return True

    def _drop(self, seq: int) -> None:
        gone = self._pinged.pop(seq)
        self._keys.discard((gone.id, gone.address))
        self._by_source[gone.source] -= 1
        if not self._by_source[gone.source]:
            del self._by_source[gone.source]
