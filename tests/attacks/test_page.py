"""Connections to the page's port that never ask for anything."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_node.address import parse_address
from tests.attacks.conftest import Figure
from tests.attacks.crowd import silent
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
        answers = await asyncio.to_thread(visit, page.url)
        assert answers == {200}
        figure(f"400 connections to the page, {how}", "503 for minutes", "/healthz and /metrics answer 200")

    def visit(url: str) -> set[int]:
        address = url.removeprefix("http://").rstrip("/")
        assert parse_address(address)
        with silent(address, 400) as crowd:
            for one in crowd:
                try:
                    say(one)
                except OSError:
                    continue
            return {
                urllib.request.urlopen(f"{url}{path}", timeout=20).status
                for path in ("healthz", "metrics", "healthz", "metrics")
            }

    play(tmp_path, scene)
