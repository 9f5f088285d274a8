"""The time until a swarm with TLS refuses an unauthorised caller, by reason.

The seed is a real process. Every attempt is a new connection unless the table says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from benchmarks.report import show
from pfl_node.errors import PeerError
from pfl_node.membership import membership_pb2, packet_codec
from pfl_node.membership.member import Member
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire import membership_pb2_grpc
from pfl_node.wire.client import PeerClient
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.tls import Tls
from tests.identities import LONG_AGO, Site

Try = Callable[[], Awaitable[str]]  # the refusal that the caller got


class Tries:
    """The kinds of unauthorised callers."""

    def __init__(self, folder: Path, address: str, site: Site) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._site = site
        theirs = Site(folder / "theirs", "their CA")
        self._ann, self._stranger = site.tls("ann"), theirs.tls("eve")
        self._late, self._liar = folder / "late", site.tls("liar")
        site.member("late")
        site.certify("late", start=LONG_AGO)
        site.certify("liar", like=self._ann.id)
        credentials = self._liar.trust.credentials
        credentials.context.load_cert_chain(folder / "liar" / "cert.pem", folder / "liar" / "key.pem")
        object.__setattr__(credentials, "chain", (folder / "liar" / "cert.pem").read_bytes())
        self._theirs = folder / "theirs" / "eve"

    def all(self) -> dict[str, Try]:
        return {
            "no TLS": lambda: self._asks(Dialer()),
            "no certificate": lambda: self._shows(None),
            "another CA, seen by the caller": lambda: self._asks(self._stranger.dialer),
            "another CA, seen by the seed": lambda: self._shows(self._theirs),
            "expired": lambda: self._shows(self._late),
            "somebody else's id in the certificate": lambda: self._asks(self._liar.dialer),
            "somebody else's id in the message": self._pretends,
            "the wrong node at an address": lambda: self._asks(self._ann.dialer, expect=self._stranger.id),
        }

    async def _asks(self, dialer: Dialer, expect: PeerId | None = None) -> str:
        try:
            if expect:
                await dialer.dial(self.address, 5.0, expect)
            else:
                await asked(dialer, self.address)
        except PeerError as error:
            return error.text
        raise SystemExit("the caller was not refused")

    async def _shows(self, directory: Path | None) -> str:
        return await asyncio.to_thread(self._hung_up, directory)

    def _hung_up(self, directory: Path | None) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if directory:
            context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        try:
            with socket.create_connection(self._place, 20) as plain, context.wrap_socket(plain) as line:
                if line.recv(1):
                    raise SystemExit("the caller was not refused")
        except OSError as error:
            return f"{type(error).__name__}"
        return "the connection was closed"

    async def _pretends(self) -> str:
        link = await self._ann.dialer.dial(self.address, 5.0)
        stub = membership_pb2_grpc.MembershipStub(link.channel)
        me = Member(self._stranger.id, "eve", address="127.0.0.1:1", role="node", run="x", incarnation=1)
        try:
            await stub.Join(membership_pb2.JoinRequest(member=packet_codec.to_wire(me)), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
        finally:
            await link.channel.close()
        raise SystemExit("the caller was not refused")


async def asked(dialer: Dialer, address: str) -> None:
    client = PeerClient(PeerId("x"), "run", WireSettings(), dialer)
    try:
        await client.status(address)
    finally:
        await client.close()


async def revoked(site: Site, address: str, tls: Tls) -> tuple[float, float, str]:
    """Seconds from the new list to the first refusal, and of a refused call, both on one open connection."""
    client = PeerClient(tls.id, "run", WireSettings(), tls.dialer)
    await client.status(address)
    site.revoke(tls.id, at="seed")
    arrived = time.perf_counter()
    try:
        while True:
            began = time.perf_counter()
            try:
                await client.status(address)
            except PeerError as error:
                now = time.perf_counter()
                return now - arrived, now - began, error.text
    finally:
        await client.close()


async def measure(folder: Path, address: str, site: Site, times: int) -> list[dict[str, Any]]:
    rows = []
    for what, attempt in Tries(folder, address, site).all().items():
        told, seconds = "", []
        for _ in range(times):
            began = time.perf_counter()
            told = await attempt()
            seconds.append(time.perf_counter() - began)
        rows.append(row(what, seconds, told))
    outcomes = [await revoked(site, address, site.tls(f"thief-{n}")) for n in range(times)]
    rows.append(row("revoked, on an open connection", [call for _, call, _ in outcomes], outcomes[-1][2]))
    rows.append(row("from the list's arrival to that", [all_ for all_, _, _ in outcomes], ""))
    return rows


def row(what: str, seconds: list[float], told: str) -> dict[str, Any]:
    return {
        "who": what,
        "median ms": 1000 * median(seconds),
        "worst ms": 1000 * max(seconds),
        "is told": told[:60],
    }


def main() -> None:
    times = int(sys.argv[1]) if sys.argv[1:] else 20
    with TemporaryDirectory() as place:
        folder = Path(place)
        site = Site(folder)
        site.member("seed")
        words = ["--tls", "--data-dir", str(folder / "seed"), "--listen", "127.0.0.1:0"]
        command = [sys.executable, "-m", "bootstrap", *words]
        seed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert seed.stdout is not None
        try:
            address = json.loads(seed.stdout.readline())["address"]
            rows = asyncio.run(measure(folder, address, site, times))
        finally:
            seed.kill()
            seed.wait()
            seed.stdout.close()
    load = os.getloadavg()[0]
    show(
        "refusals: time until an unauthorised caller is refused", rows, [f"{times} attempts each; load {load:.1f}"]
    )


if __name__ == "__main__":
    main()
