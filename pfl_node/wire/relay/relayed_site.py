"""Keeps a site that cannot be dialled registered at relays, and opens a connection for each caller."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from pfl_node.errors import PeerError
from pfl_node.types import PeerId
from pfl_node.wire.connector import Connector
from pfl_node.wire.dialer import Dialer, Link
from pfl_node.wire.http_connect import BEARER, SUFFIX, ConnectRequest, ask
from pfl_node.wire.listener import Listener
from pfl_node.wire.relay_pb2 import Announcement, ListenRequest
from pfl_node.wire.relay_pb2_grpc import RelayStub
from pfl_node.wire.statuses import error_from_status

log = logging.getLogger(__name__)

WANTED = 3  # relays
CONNECT_TIMEOUT = 5.0  # seconds
CONFIRMATION = 5.0  # seconds until a relay must have confirmed the registration
CHECK = 0.5  # seconds between looks for more relays
SHORTEST, LONGEST = 0.5, 30.0  # seconds before a relay that failed is tried again; doubled each time
PATIENCE = 10.0  # seconds without a relay before a warning
WHAT_TO_DO = "start a member that all can reach with --relay, or set network.relays"
ANSWERS = 64  # connections that are being opened


class RelayedSite:
    """`candidates` returns the addresses of relays, the preferred first, or None if none is known yet;
    `changed` is called with the addresses of those at which the site is registered."""

    def __init__(
        self,
        me: PeerId,
        *,
        dialer: Dialer,
        connector: Connector,
        listener: Listener,
        candidates: Callable[[], Sequence[str] | None],
        changed: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._me = me
        self._dialer = dialer
        self._connector = connector
        self._listener = listener
        self._candidates = candidates
        self._changed = changed
        self._registered: dict[str, None] = {}  # relays, the first one first
        self._keeping: dict[str, asyncio.Task[None]] = {}  # by relay
        self._retry: dict[str, tuple[float, float]] = {}  # by relay: when to try again, and the last pause
        self._answering: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._unregistered_since: float | None = None  # when a relay last connected callers; infinity: logged
        self._failure = ""  # failure of the last attempt
        self.counters: Counter[str] = Counter()  # connections answered and failed, registrations

    @property
    def relays(self) -> tuple[str, ...]:
        return tuple(self._registered)

    def start(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> list[asyncio.Task[None]]:
        """End all registrations; returns their tasks. Open connections stay open."""
        tasks = [*self._keeping.values(), *self._answering, *([self._running] if self._running else [])]
        self._running = None
        for task in tasks:
            task.cancel()
        if self._registered:
            self._registered.clear()
            self._changed(())
        return tasks

    async def close(self) -> None:
        await asyncio.gather(*self.stop(), return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            relays = self._candidates()
            if relays is not None:
                self._warn_if_unregistered(now)
            for relay in relays or ():
                if len(self._keeping) >= WANTED:
                    break
                if relay not in self._keeping and self._retry.get(relay, (0.0, 0.0))[0] <= now:
                    self._keeping[relay] = asyncio.create_task(self._keep(relay))
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), CHECK)
            except TimeoutError:
                continue

    def _warn_if_unregistered(self, now: float) -> None:
        """Warn once per outage if no relay has connected callers for long."""
        if self._registered or self._unregistered_since is None:
            self._unregistered_since = now
        elif now - self._unregistered_since >= PATIENCE:
            self._unregistered_since = float("inf")
            tried = f"; {self._failure}" if self._failure else ""
            log.warning("no relay connects callers to this node%s: %s", tried, WHAT_TO_DO)

    async def _keep(self, relay: str) -> None:
        """Stay registered at this relay until the connection fails."""
        why = "the relay ended the registration"
        link: Link | None = None
        try:
            link = await self._dialer.dial(relay, CONNECT_TIMEOUT)
            await self._listen(relay, link)
        except grpc.aio.AioRpcError as error:
            why = error_from_status(error, PeerId(relay)).text
        except PeerError as error:
            why = error.text
        except TimeoutError:
            why = f"no confirmation within {CONFIRMATION:g} s"
        finally:
            del self._keeping[relay]
            self._postpone(relay)
            if link is not None:
                await link.close()
        was = self._registered.pop(relay, relay) is None
        self._failure = f"{relay}: {why}"
        log.log(logging.INFO if was else logging.DEBUG, "relay %s lost: %s", relay, why)
        if was:
            self._changed(self.relays)
        self._wake.set()

    async def _listen(self, relay: str, link: Link) -> None:
        call: Any = RelayStub(link.channel).Listen(ListenRequest(site=self._me))
        try:
            async with asyncio.timeout(CONFIRMATION):
                first = await call.read()
            if not isinstance(first, Announcement):
                return
            self._registered[relay] = None
            self._retry.pop(relay, None)
            self.counters["registered"] += 1
            log.info("relay %s connects callers to this node", relay)
            self._changed(self.relays)
            while isinstance(announced := await call.read(), Announcement):
                self._spawn(relay, announced)
            await call.code()
        finally:
            call.cancel()

    def _postpone(self, relay: str) -> None:
        last = self._retry.get(relay, (0.0, 0.0))[1]
        pause = min(max(SHORTEST, 2 * last), LONGEST)
        self._retry[relay] = (asyncio.get_running_loop().time() + pause, pause)

    def _spawn(self, relay: str, announced: Announcement) -> None:
        if len(self._answering) >= ANSWERS:
            self.counters["too_many"] += 1
            return
        task = asyncio.create_task(self._answer(relay, announced))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, relay: str, announced: Announcement) -> None:
        """Open a connection for a caller and serve it like one that was accepted here."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._connector.connect(relay)
                try:
                    await ask(connection, ConnectRequest(self._me + SUFFIX, BEARER + announced.ticket))
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError) as error:
            self.counters["failed"] += 1
            log.debug("no connection through relay %s: %s", relay, error)
            return
        self.counters["answered"] += 1
        self._listener.take(connection, f"{announced.caller[:64]} (relay {relay})")
