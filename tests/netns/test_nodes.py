"""Real nodes behind the fault proxy: rounds go on, what was acknowledged has arrived, the peer is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.types import PeerId
from tests.e2e.in_process import Life, Town, play
from tests.netns.link_conditions import Weather
from tests.netns.proxy import Net, NodeProxy

SETTINGS: dict[str, Any] = {
    "policy": {"name": "el", "degree": 2},
    "round": {"patience": 1.0},
    "wire": {"connect_timeout": 0.5, "base_timeout": 1.0},
    "start": {"peers": 2, "wait": 60},
    "eval": {"every": 1000},
}
Swarm = dict[str, tuple[Life, NodeProxy]]


async def swarm(town: Town, net: Net, names: str = "abc") -> Swarm:
    """They know each other by their proxies only."""
    found: Swarm = {}
    for name in names:
        proxy = await net.proxy(name)
        seeds: dict[str, Any] = {"peer_seed": (found["a"][1].address,)} if found else {}
        life = await town.listens(name, advertise=proxy.address, **SETTINGS, **seeds)
        proxy.leads_to(life.node.endpoint.address)
        found[name] = life, proxy
    for life, _ in found.values():
        life.begin()
    for life, _ in found.values():
        await life.trains()
    return found


def knows(life: Life, other: Life) -> bool:
    return PeerId(other.node.id) in life.node.peers()


def lost(lives: list[Life]) -> list[tuple[str, str, int, int]]:
    """Pairs of which the sender has more receipts than the receiver has models."""
    pairs = [(a, b) for a in lives for b in lives if a is not b]
    counts = [
        (
            a.node.name,
            b.node.name,
            TransferTotals.of(a.node).models_sent[PeerId(b.node.id)],
            TransferTotals.of(b.node).models_received[PeerId(a.node.id)],
        )
        for a, b in pairs
    ]
    assert any(sent for _, _, sent, _ in counts)
    return [row for row in counts if row[2] > row[3]]


def run(path: Path, scene: Callable[[Swarm, Net], Awaitable[None]]) -> None:
    async def main(town: Town) -> None:
        async with Net(seed=1) as net:
            nodes = await swarm(town, net)
            lives = [life for life, _ in nodes.values()]
            try:
                await scene(nodes, net)
                for life in lives:
                    assert await life.stops() == "stopped"
                assert not lost(lives)
            finally:
                for life in lives:
                    await life.close()

    play(path, main)


async def all_together(nodes: Swarm, rounds: int = 2) -> None:
    """Everybody knows everybody, and all go on, at last with models of each other."""
    lives = [life for life, _ in nodes.values()]
    for life in lives:
        for other in lives:
            if other is not life:
                await life.until(lambda me=life, peer=other: knows(me, peer))  # type: ignore[misc]

    def received(life: Life, peer: PeerId) -> int:
        return TransferTotals.of(life.node).models_received[peer]

    before = {(life, other): received(life, PeerId(other.node.id)) for life in lives for other in lives}
    await asyncio.gather(*(life.rounds(rounds) for life in lives))
    for life in lives:
        for other in lives:
            if other is not life:
                peer, seen = PeerId(other.node.id), before[life, other]
                await life.until(lambda me=life, p=peer, n=seen: received(me, p) > n)  # type: ignore[misc]


def test_a_link_that_dies_silently_in_the_middle_of_a_model(tmp_path: Path) -> None:
    async def scene(nodes: Swarm, net: Net) -> None:
        """Of the link to c; its own calls to the others still go."""
        (a, _), (b, _), (c, proxy) = nodes.values()
        await a.rounds(1)
        await proxy.after(6000, proxy.silence).wait()
        await asyncio.gather(a.rounds(3), b.rounds(3), c.rounds(3))
        proxy.speak()
        await all_together(nodes)

    run(tmp_path, scene)


def test_a_peer_that_calls_others_but_cannot_be_called(tmp_path: Path) -> None:
    """Its own probes go out, so it refutes every suspicion: it costs timeouts, not the run."""

    async def scene(nodes: Swarm, net: Net) -> None:
        (a, _), (b, _), (c, proxy) = nodes.values()
        proxy.silence()
        proxy.reset()
        await asyncio.gather(a.rounds(3), b.rounds(3), c.rounds(3))
        proxy.speak()
        await all_together(nodes)

    run(tmp_path, scene)


@pytest.mark.slow
def test_a_link_that_comes_and_goes(tmp_path: Path) -> None:
    async def scene(nodes: Swarm, net: Net) -> None:
        (a, _), (b, _), (c, proxy) = nodes.values()
        net.sky.everywhere = Weather(delay=0.005, jitter=0.01, loss=0.02)
        for turn in range(6):
            proxy.silence()
            await a.rounds(1)
            proxy.speak()
            if turn % 2:
                proxy.reset()
            await asyncio.gather(b.rounds(1), c.rounds(1))
        await all_together(nodes)

    run(tmp_path, scene)


def test_a_slow_link_makes_models_late_and_loses_none(tmp_path: Path) -> None:
    async def scene(nodes: Swarm, net: Net) -> None:
        for _, proxy in nodes.values():
            proxy.rate = 200e3
        await all_together(nodes, rounds=3)

    run(tmp_path, scene)
