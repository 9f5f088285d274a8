"""Packets on their way out, each with as much news as fits into a datagram. Knows no network."""

from __future__ import annotations

from pfl_node.membership.member import Member
from pfl_node.membership.packet import HEAD_BYTES, Kind, Packet, member_bytes, rumor_bytes, width
from pfl_node.membership.suspendable_clock import SuspendableClock
from pfl_node.membership.view import View


class Outbox:
    def __init__(self, view: View, time: SuspendableClock, packet_bytes: int) -> None:
        self._view = view
        self._time = time
        self._bytes = packet_bytes
        self._packets: list[tuple[str, Packet]] = []

    def take(self) -> list[tuple[str, Packet]]:
        taken, self._packets = self._packets, []
        return taken

    def send(
        self,
        address: str,
        kind: Kind,
        *,
        seq: int = 0,
        to: Member | None = None,
        target: str = "",
        place: str = "",
    ) -> None:
        """To a member that is taken for suspect or gone that rumour goes first of all, so that it can refute."""
        me = self._view.me
        verdict = self._view.verdict(to, self._time.now) if to is not None else None
        first = (verdict,) if verdict is not None else ()
        budget = self._bytes - HEAD_BYTES - member_bytes(me) - width(target) - width(place)
        news = self._view.take_news(budget - sum(map(rumor_bytes, first)))
        self._packets.append((address, Packet(kind, me, seq, target, place, (*first, *news))))
