"""Connections to the page's port that never ask for anything."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_node.address import parse_address
from pfl_node.ops.history import POINTS, thinned
from pfl_node.ops.peer_status import points_of
from pfl_node.wire import peer_pb2 as pb
from tests.attacks.conftest import Figure
from tests.attacks.idle_connections import idle
from tests.e2e.in_process import Town, play

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n"


def nothing(_: socket.socket) -> None:
    return


@pytest.mark.parametrize(
    ("how", "say"),
    [
        ("silent", nothing),
        ("with half a head", lambda one: one.sendall(HEAD)),
        ("with half a body", lambda one: one.sendall(POST)),
    ],
)
def test_idle_connections_do_not_block_the_health_check(
    tmp_path: Path, figure: Figure, how: str, say: Callable[[socket.socket], None]
) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http={"listen": "127.0.0.1:0"})
        page = ann.node.node_observer.page
        assert page
        began = time.monotonic()
        answers = await asyncio.to_thread(visit, page.url)
        took = time.monotonic() - began
        assert answers == [200] * 4
        figure(f"400 connections to the page, {how}", "503 for minutes", f"4 of 4 answer 200, {took:.1f} s in all")

    def visit(url: str) -> list[int]:
        address = url.removeprefix("http://").rstrip("/")
        assert parse_address(address)
        with idle(address, 400) as crowd:
            for one in crowd:
                try:
                    say(one)
                except OSError:
                    continue
            return [
                urllib.request.urlopen(f"{url}{path}", timeout=20).status
                for path in ("healthz", "metrics", "healthz", "metrics")
            ]

    play(tmp_path, scene)


def test_the_history_of_a_peer_has_a_bounded_size_on_the_page(figure: Figure) -> None:
    """A peer that answers every question with as many new rounds as are taken."""
    known = thinned([])
    for answer in range(1000):
        rounds = range(answer * POINTS, (answer + 1) * POINTS)
        history = pb.History(points=[pb.Point(round=n, time=n, figures={"val_loss": 1.0}) for n in rounds])
        known = thinned([*known, *points_of(history, known[-1].round if known else -1)])
    assert len(known) <= 2 * POINTS
    assert known[-1].round == 1000 * POINTS - 1
    figure("history of one peer while the page is open", "6 MB per 30 s", f"{len(known)} points at most")
