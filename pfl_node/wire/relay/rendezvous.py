"""The relay: joins the connection of a caller with one that the site opens for it.

A ticket is a random number that is valid once and for a few seconds. A connection shows only its ticket, so the
relay adds no TLS to connections that already carry TLS; the calls of `relay_service` decide who gets tickets.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pfl_node.errors import Reason, Refused
from pfl_node.wire.connector import keep_alive
from pfl_node.wire.http_connect import (
    BEARER,
    FORBIDDEN,
    OK,
    SUFFIX,
    TIMED_OUT,
    ConnectRequest,
    answer,
)
from pfl_node.wire.relay.relay_limits import RelayLimits, SiteUse
from pfl_node.wire.resources import open_files
from pfl_node.wire.splice import Splice

PATIENCE = 10.0  # seconds until both connections must have arrived
TICKET_BYTES = 16
REMEMBERED = 4  # multiple of the site limit: number of sites whose use is kept
FILES = 8  # a connection through the relay uses two file descriptors, and all together a quarter of them
WAITING = 1024  # connections that are being opened, of all sites


@dataclass(frozen=True, slots=True)
class Announced:
    ticket: str
    caller: str


class Registration:
    """A site that can be reached. Its announcements end when it is replaced or the relay closes."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._queue: asyncio.Queue[Announced | None] = asyncio.Queue()

    def announce(self, announced: Announced) -> None:
        self._queue.put_nowait(announced)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> Announced | None:
        return await self._queue.get()


@dataclass(slots=True, eq=False)
class RelayedConnection:
    """Two tickets, and the connections that have arrived with them."""

    site: str
    caller: str
    arrived: dict[str, socket.socket] = field(default_factory=dict)  # by ticket
    expiry: asyncio.TimerHandle | None = None


class Rendezvous:
    def __init__(self, limits: RelayLimits | None = None) -> None:
        self.limits = limits or RelayLimits()
        self.sites: dict[str, Registration] = {}
        self.use: dict[str, SiteUse] = {}
        self.refused: Counter[str] = Counter()  # refusals by reason
        self._pending: dict[str, RelayedConnection] = {}  # by ticket
        self._splices: dict[Splice, RelayedConnection] = {}
        self._closed = False

    @property
    def connections(self) -> int:
        return len(self._splices)

    def figures(self) -> dict[str, Any]:
        """Figures for status and metrics."""
        return {
            "sites": len(self.sites),
            "connections": self.connections,
            "opened": {site: use.opened for site, use in self.use.items()},
            "bytes": {site: use.bytes for site, use in self.use.items()},
            "refused": dict(self.refused),
        }

    # -- calls ---------------------------------------------------------------------------------------------

    def register(self, site: str) -> Registration:
        """A newer registration replaces an older one, whose connection may be lost without notice."""
        if self._closed:
            raise self._refusal(Reason.NOT_READY, "the relay is closing")
        if site not in self.sites and len(self.sites) >= self.limits.sites:
            raise self._refusal(Reason.FLOOD, f"this relay serves {self.limits.sites} sites already")
        if (old := self.sites.get(site)) is not None:
            old.end()
        self.sites[site] = new = Registration(site)
        self._use(site)
        return new

    def unregister(self, registration: Registration) -> None:
        if self.sites.get(registration.site) is registration:
            del self.sites[registration.site]

    def open(self, caller: str, site: str) -> str:
        """Announce the caller to the site, and return the caller's ticket. Raises Refused."""
        registration = self.sites.get(site)
        if registration is None:
            raise self._refusal(Reason.UNKNOWN_PEER, f"{site[:64]} is not registered at this relay")
        use = self._use(site)
        if why := use.refusal(caller, _now()):
            raise self._refusal(Reason.FLOOD, f"the relay opens no connection to {site}: {why}")
        if len(self._pending) >= 2 * WAITING or FILES * self.connections >= open_files():
            raise self._refusal(Reason.FLOOD, "the relay has too many connections; try again later")
        relayed = RelayedConnection(site, caller)
        mine, theirs = (secrets.token_hex(TICKET_BYTES) for _ in range(2))
        self._pending[mine] = self._pending[theirs] = relayed
        relayed.expiry = asyncio.get_running_loop().call_later(PATIENCE, self._expire, mine, theirs)
        use.begin(caller)
        registration.announce(Announced(theirs, caller))
        return mine

    # -- connections ---------------------------------------------------------------------------------------

    def arrive(self, request: ConnectRequest, connection: socket.socket) -> None:
        """Take over a connection that sent this request."""
        ticket = request.authorization.removeprefix(BEARER)
        relayed = self._pending.get(ticket)
        if relayed is None or request.target != relayed.site + SUFFIX or ticket in relayed.arrived:
            self.refused[str(Reason.NOT_ALLOWED)] += 1
            _end(connection, FORBIDDEN, "this ticket is not valid here; ask for one with Relay.Open")
            return
        relayed.arrived[ticket] = connection
        if len(relayed.arrived) == 2:
            self._join(relayed)

    def close(self) -> None:
        self._closed = True
        for registration in self.sites.values():
            registration.end()
        self.sites.clear()
        for splice in list(self._splices):
            splice.close()
        for relayed in {id(m): m for m in self._pending.values()}.values():
            self._drop(relayed)
        self._pending.clear()

    def close_unless(self, allowed: Callable[[str], bool]) -> None:
        """End the registrations and connections of members that are not accepted any more."""
        for site in [site for site in self.sites if not allowed(site)]:
            self.sites.pop(site).end()
        for splice, relayed in list(self._splices.items()):
            if not (allowed(relayed.site) and allowed(relayed.caller)):
                splice.close()

    def _join(self, relayed: RelayedConnection) -> None:
        one, other = relayed.arrived.values()
        for ticket in relayed.arrived:
            del self._pending[ticket]
        if relayed.expiry is not None:
            relayed.expiry.cancel()
        use = self._use(relayed.site)
        splice = Splice(
            one,
            other,
            on_bytes=lambda size: self._moved(use, splice, size),
            on_end=lambda ended: self._ended(ended),
        )
        self._splices[splice] = relayed
        try:
            for end in (one, other):
                keep_alive(end)
                end.send(answer(OK, "connected"))
        except OSError:
            splice.close()
            return
        splice.start()

    def _moved(self, use: SiteUse, splice: Splice, size: int) -> float:
        now = _now()
        wait = use.move(size, now)
        if use.exhausted(now):
            self.refused["bytes_per_day"] += 1
            asyncio.get_running_loop().call_soon(splice.close)
        return wait

    def _ended(self, splice: Splice) -> None:
        relayed = self._splices.pop(splice)
        self._use(relayed.site).end(relayed.caller)

    def _expire(self, *tickets: str) -> None:
        expired = [self._pending.pop(ticket) for ticket in tickets]
        self.refused["no_answer"] += 1
        self._drop(expired[0])

    def _drop(self, relayed: RelayedConnection) -> None:
        if relayed.expiry is not None:
            relayed.expiry.cancel()
        self._use(relayed.site).end(relayed.caller)
        for connection in relayed.arrived.values():
            _end(connection, TIMED_OUT, "the other side did not connect")

    def _use(self, site: str) -> SiteUse:
        if site not in self.use and len(self.use) >= REMEMBERED * self.limits.sites:
            self.use = {one: use for one, use in self.use.items() if use.callers or one in self.sites}
        return self.use.setdefault(site, SiteUse(self.limits, _now()))

    def _refusal(self, reason: Reason, text: str) -> Refused:
        self.refused[str(reason)] += 1
        return Refused(reason, text)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _end(connection: socket.socket, status: int, text: str) -> None:
    with suppress(OSError):
        connection.send(answer(status, text))
    connection.close()
