"""The fault proxy alone: an echo behind a proxy, over TCP and over UDP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.netns.link_conditions import Weather
from tests.netns.proxy import Net, NodeProxy

DEADLINE = 30.0


class Echo(asyncio.DatagramProtocol):
    """Says everything again, on a port that is TCP's and UDP's."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.port = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)

    @staticmethod
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Listener(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.came = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.heard.append(data)
        self.came.set()

    async def hears(self, count: int) -> list[bytes]:
        while len(self.heard) < count:
            self.came.clear()
            await self.came.wait()
        return self.heard


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Net, NodeProxy]]:
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(Echo.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", port))
    try:
        async with Net(seed=1) as net:
            proxy = await net.proxy("echo")
            proxy.leads_to(f"127.0.0.1:{port}")
            yield net, proxy
    finally:
        server.close()
        transport.close()
        await asyncio.sleep(0)


Scene = Callable[[Net, NodeProxy], Awaitable[None]]


def play(scene: Scene) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), echo() as (net, proxy):
            await scene(net, proxy)

    asyncio.run(main())


async def connect(proxy: NodeProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def listen(proxy: NodeProxy) -> Listener:
    loop = asyncio.get_running_loop()
    _, made = await loop.create_datagram_endpoint(Listener, remote_addr=("127.0.0.1", proxy.port))
    return made


def test_what_goes_through_comes_out_and_an_end_is_an_end() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        reader, writer = await connect(proxy)
        data = os.urandom(3_000_000)
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
        assert proxy.carried == len(data)
        writer.close()
        packets = await listen(proxy)
        packets.transport.sendto(b"hello")
        assert await packets.hears(1) == [b"hello"]
        packets.transport.close()

    play(scene)


def test_silence_keeps_bytes_until_it_ends_and_packets_never_come() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        reader, writer = await connect(proxy)
        packets = await listen(proxy)
        proxy.silence()
        writer.write(b"one")
        packets.transport.sendto(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.2)
        assert not packets.heard
        proxy.speak()
        assert await reader.readexactly(3) == b"one"
        packets.transport.sendto(b"heard")
        assert await packets.hears(1) == [b"heard"]
        writer.close()
        packets.transport.close()

    play(scene)


def test_a_wire_is_tripped_in_the_middle_of_what_is_sent() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        reader, writer = await connect(proxy)
        tripped = proxy.after(200_000, proxy.silence)
        writer.write(bytes(1_000_000))
        reading = asyncio.create_task(reader.readexactly(1_000_000))
        await tripped.wait()
        await asyncio.sleep(0.05)
        assert not reading.done()
        assert 200_000 <= proxy.carried < 1_000_000
        proxy.speak()
        assert len(await reading) == 1_000_000
        writer.close()

    play(scene)


def test_a_reset_is_seen_at_once_and_new_connections_are_good() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        reader, writer = await connect(proxy)
        writer.write(b"hello")
        await reader.readexactly(5)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await connect(proxy)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()

    play(scene)


def test_a_door_to_nobody_breaks_the_connection() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        nowhere = await net.proxy("nowhere")
        reader, writer = await connect(nowhere)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()

    play(scene)


def test_delay_and_jitter_keep_the_order_of_a_stream() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        net.sky.everywhere = Weather(delay=0.02, jitter=0.03)
        reader, writer = await connect(proxy)
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(20):
            writer.write(bytes([number]))
            await asyncio.sleep(0)
        assert await reader.readexactly(20) == bytes(range(20))
        assert clock() - began >= 0.04  # there and back
        writer.close()

    play(scene)


def test_a_rate_is_kept() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        proxy.rate = 1e6
        reader, writer = await connect(proxy)
        clock = asyncio.get_running_loop().time
        began = clock()
        writer.write(bytes(300_000))
        await reader.readexactly(300_000)
        assert clock() - began >= 0.3
        writer.close()

    play(scene)


def test_packets_are_lost_by_chance() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        net.sky.everywhere = Weather(loss=0.5)
        packets = await listen(proxy)
        for number in range(200):
            packets.transport.sendto(bytes([number]))
            await asyncio.sleep(0.001)
        net.sky.everywhere = Weather()
        packets.transport.sendto(b"last")
        while b"last" not in await packets.hears(1):
            packets.came.clear()
            await packets.came.wait()
        assert 20 < len(packets.heard) < 90  # a quarter comes back
        packets.transport.close()

    play(scene)


CALLER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    sys.stdin.readline()
    line.sendall(b"x")
    print(line.recv(1).decode(), flush=True)
"""


def call(proxy: NodeProxy) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", CALLER, str(proxy.port)]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_on_the_two_sides_of_a_border_do_not_reach_each_other() -> None:
    async def scene(net: Net, proxy: NodeProxy) -> None:
        callers = [call(proxy), call(proxy)]
        net.pids.update({callers[0].pid: "friend", callers[1].pid: "stranger"})
        net.split({"friend", "echo"}, {"stranger"})
        try:
            answers = []
            for caller in callers:
                assert caller.stdin
                assert caller.stdout
                caller.stdin.write("go\n")
                caller.stdin.flush()
                answers.append(asyncio.create_task(asyncio.to_thread(caller.stdout.readline)))
            assert await answers[0] == "x\n"
            assert not answers[1].done()
            net.heal()
            assert await answers[1] == "x\n"
        finally:
            for caller in callers:
                caller.kill()
                caller.communicate()

    play(scene)
