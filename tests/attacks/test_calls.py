"""Calls that hold a place or memory without sending a message, by callers that may not call, or by anyone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pfl_node.security.requirements import prepare
from pfl_node.security.tls_files import TlsFiles
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import MAX_MESSAGE
from pfl_node.wire.tls import Tls
from tests.attacks.conftest import Figure
from tests.attacks.http2_caller import Caller, callers
from tests.e2e.processes import Process, until
from tests.identities import Site, fresh_id, pinned

Start = Callable[..., Process]
WHO = ["a revoked member", "a stranger, pinned ids", "anyone, no TLS", "a member"]
JOIN = "/pfl.v2.Membership/Join"


@dataclass
class Scene:
    """A seed, what an attacker shows, and a member that calls meanwhile."""

    seed: Process
    attacker: TlsFiles | None
    member: Tls | None

    @property
    def memory(self) -> float:
        """MB"""
        return float(psutil.Process(self.seed.popen.pid).memory_info().rss / 1e6)

    def member_calls(self, count: int) -> list[float]:
        """Seconds of each status call, on a new connection each. Raises PeerError where one fails."""

        async def one() -> float:
            client = PeerClient(
                self.member.id if self.member else PeerId("friend"),
                "run",
                WireSettings(),
                self.member.dialer if self.member else Dialer(),
            )
            began = time.monotonic()
            try:
                await client.status(self.seed.address)
            finally:
                await client.close()
            return time.monotonic() - began

        async def all_() -> list[float]:
            return sorted([await one() for _ in range(count)])

        return asyncio.run(all_())


@pytest.fixture(params=WHO)
def scene(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Scene:
    who: str = request.param
    files: list[TlsFiles] = []
    tls = who != "anyone, no TLS"
    if who == "a stranger, pinned ids":
        ids = {name: fresh_id(tmp_path / name) for name in ("seed", "friend", "eve")}
        allowed = [ids["seed"], ids["friend"]]
        files = [pinned(tmp_path / name, allow=allowed) for name in ("seed", "eve", "friend")][1:]
        prepare(files[0], "eve")
    elif tls:
        site = Site(tmp_path)
        site.member("seed")
        files = [site.member("eve"), site.member("friend")]
        if who == "a revoked member":
            site.revoke(fresh_id(tmp_path / "eve"), at="seed")
    words = ("--data-dir", "seed", "--tls") if tls else ()
    seed = start("bootstrap", *words, "--listen", "127.0.0.1:0", "--log-format", "json")
    assert seed.address
    return Scene(seed, files[0], Tls(files[1])) if files else Scene(seed, None, None)


def test_calls_without_a_message_leave_places_for_members(
    scene: Scene, figure: Figure, request: pytest.FixtureRequest
) -> None:
    who = request.node.callspec.params["scene"]
    with callers(scene.seed.address, 5, scene.attacker) as attackers:
        for n in range(256):
            for one in attackers:
                one.call(JOIN, n)
        took = scene.member_calls(20)
        if who in WHO[:2]:
            assert not any(one.is_open() for one in attackers)
    figure(
        f"5 x 256 calls without a message, {who}",
        "RESOURCE_EXHAUSTED for all" if who != "a member" else "-",
        f"20 of 20 calls of a member served, median {took[10] * 1000:.0f} ms",
    )


@pytest.mark.attacks
def test_incomplete_messages_hold_little_memory(
    scene: Scene, figure: Figure, request: pytest.FixtureRequest
) -> None:
    who = request.node.callspec.params["scene"]
    before = scene.memory
    most = before
    with callers(scene.seed.address, 5, scene.attacker) as attackers:
        for n in range(80):
            for one in attackers:
                one.call(JOIN, n, sent=bytes(MAX_MESSAGE - 4096), size=MAX_MESSAGE - 1024)
            most = max(most, scene.memory)
        scene.member_calls(5)
        most = max(most, scene.memory)
    figure(f"400 incomplete messages, {who}", "592 -> 1,365 MB", f"{before:.0f} -> {most:.0f} MB")
    assert most < before + 300
    if who in WHO[:2]:
        assert most < before + 60


@pytest.mark.attacks
@pytest.mark.parametrize("scene", WHO[:2], indirect=True)
def test_a_damaged_path_of_a_refused_caller_does_not_reach_grpc(
    scene: Scene, figure: Figure, request: pytest.FixtureRequest
) -> None:
    who = request.node.callspec.params["scene"]
    for n in range(154):
        one = Caller(scene.seed.address, scene.attacker)
        one.bad_path()
        if n % 5 == 0:
            scene.member_calls(1)
        one.close()
    until(lambda: "refused a connection" in scene.seed.output, scene.seed)
    replaced = scene.seed.output.count("ended gRPC's server")
    assert replaced == 0
    figure(
        f"154 calls with a damaged path, {who}",
        "153 replacements, 17 of 30 failed",
        f"{replaced} replacements, 0 of 31 failed",
    )
