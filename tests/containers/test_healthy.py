"""The health check of the images, against real endpoints."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import socket
import sys

import pytest

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


def asked(monkeypatch: pytest.MonkeyPatch, states: list[int], *words: str) -> tuple[int, int]:
    """The exit code and the number of questions, if the node answers with these states, the last one forever."""
    spec = importlib.util.spec_from_file_location("healthy", DOCKER / "healthy.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clock, count = [0.0], itertools.count()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.time, "sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))
    monkeypatch.setattr(module, "ask", lambda *_: states[min(next(count), len(states) - 1)])
    return module.main(["127.0.0.1:7946", *words]), next(count)


def test_a_check_may_wait_until_the_node_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, [2, 2, 1], "--wait", "10") == (0, 3)
    assert asked(monkeypatch, [2, 2, 1], "--wait", "10", "--tls", "cert.pem", "key.pem") == (0, 3)


def test_a_check_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, [2], "--wait", "10") == (1, 11)
    assert asked(monkeypatch, [2]) == (1, 1)


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
