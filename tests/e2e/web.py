"""Asks a node's page as a browser would, from the node's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.e2e.in_process import DEADLINE, Life


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def get(node: Life, path: str, *, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    """One question on a connection of its own."""
    assert node.node.node_observer.page
    port = node.node.node_observer.page.port
    given = {"host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "connection: close"]
        writer.write("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
    if found.get("transfer-encoding") == "chunked":
        rest = _joined(rest)
    return Answer(int(head[0].split()[1]), found, rest)


async def live(node: Life) -> AsyncIterator[tuple[str, Any]]:
    """The messages of /api/live, as they come."""
    assert node.node.node_observer.page
    port = node.node.node_observer.page.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /api/live HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        text = b""
        while size := int(await reader.readline() or b"0", 16):
            text += await reader.readexactly(size)
            await reader.readexactly(2)
            while b"\n\n" in text:
                message, _, text = text.partition(b"\n\n")
                event, data = message.decode().split("\n", 1)
                yield event.removeprefix("event: "), json.loads(data.removeprefix("data: "))
    finally:
        writer.close()


def _joined(chunks: bytes) -> bytes:
    whole = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        whole, chunks = whole + chunks[: int(size, 16)], chunks[int(size, 16) + 2 :]
    return whole
