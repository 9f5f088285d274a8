"""The health check of the images, against real endpoints."""

from __future__ import annotations

import asyncio
import socket
import sys

from pfl_node.wire.endpoint import Endpoint
from tests.containers.files import DOCKER


async def healthy(address: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(DOCKER / "healthy.py"), address, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode().strip()


def test_it_says_what_the_health_service_says() -> None:
    async def scene() -> None:
        endpoint = Endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        at = endpoint.address
        assert await healthy(at) == (1, f"{at}: not serving")
        await endpoint.serving(True)
        assert await healthy(at) == (0, f"{at}: serving")
        await endpoint.stop(0)
        code, text = await healthy(at)
        assert code == 1
        assert "refused" in text

    asyncio.run(scene())


def test_somebody_else_at_the_port_is_not_healthy() -> None:
    async def scene() -> None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            code, _ = await healthy(f"{host}:{port}")
        assert code == 1

    asyncio.run(scene())


def test_a_port_that_nobody_has_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, text = asyncio.run(healthy(f"127.0.0.1:{taken.getsockname()[1]}"))
    assert code == 1
    assert "\n" not in text
