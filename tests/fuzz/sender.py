"""Sends cases to a node and tells how each was answered. Knows nothing of what is in them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import grpc

from pfl_node.address import parse_address
from pfl_node.wire.endpoint import channel_options
from tests.fuzz import http2
from tests.fuzz.cases import Case

LONG = 300.0  # seconds after which a call that should have been answered hangs, even on a very busy machine
SHORT = 0.25  # seconds that a stream without an end, or one that its sender leaves open, is listened to, at least
READ = 20  # messages of a stream that are read
CHANNELS = 4
Code = grpc.StatusCode
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# gRPC's own name for a write to a call that is over; its types do not tell of it.
OVER: type[Exception] = import_module("grpc._cython.cygrpc").ExecuteBatchError

OWN = "Internal error from Core"  # what gRPC's client says when the node ends a call that is still being written

# Whatever comes, these must not be the answer: they mean that nobody thought of it.
BAD = frozenset({Code.INTERNAL, Code.UNKNOWN})


class Answer(NamedTuple):
    """`wrong`: what a finding says of it, if it is one."""

    word: str
    wrong: str = ""


class Sender:
    """Aims at one node. `async with` it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channels: list[Any] = []
        self._next = 0
        self._place = parse_address(address)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.setblocking(False)
        self._methods: dict[tuple[int, str, bool], Any] = {}
        self.heard = 0  # datagrams that came back
        self._usual = 0.0  # seconds that an answer takes, lately

    async def __aenter__(self) -> Sender:
        own = ("grpc.use_local_subchannel_pool", 1)  # each channel is a connection
        bare = [option for option in channel_options() if option[0] != "grpc.max_send_message_length"]
        options = [*bare, own, ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]
        self._channels = [grpc.aio.insecure_channel(self.address, options=options) for _ in range(CHANNELS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._udp.close()
        for channel in self._channels:
            await channel.close()

    async def send(self, case: Case) -> Answer:
        match case.way:
            case "udp":
                return await self._datagram(case)
            case "tcp":
                return await self._connection(case)
        return await self._call(case)

    async def _datagram(self, case: Case) -> Answer:
        data = case.messages[0][:65_000]
        await asyncio.get_running_loop().sock_sendto(self._udp, data, self._place)
        while True:
            try:
                self._udp.recv(1 << 16)
            except BlockingIOError:
                return Answer("sent")
            self.heard += 1

    async def _connection(self, case: Case) -> Answer:
        try:
            reader, writer = await asyncio.open_connection(*self._place)
        except OSError as error:
            return Answer("no connection", "" if await self._is_there() else f"nobody takes connections: {error}")
        said = b""
        try:
            for piece in case.messages:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(self._patience):
                while more := await reader.read(1 << 16):
                    said += more
            return Answer(f"closed after {http2.spoken(said)}")
        except TimeoutError:
            return Answer(f"open after {http2.spoken(said)}")
        except OSError:
            return Answer("reset")
        finally:
            writer.close()

    async def _call(self, case: Case) -> Answer:
        one = len(case.messages) == 1 and case.manner == "whole" and not case.answers_many
        call = self._method(case.path, one)
        try:
            if one:
                await self._timed(call(case.messages[0], timeout=LONG, metadata=case.metadata))
                return Answer("OK")
            return await self._stream(call(timeout=LONG, metadata=case.metadata), case)
        except grpc.aio.AioRpcError as error:
            return await self._judged(error.code(), error.details())

    async def _stream(self, call: Any, case: Case) -> Answer:
        """All messages, and what comes back. Who leaves a call open cannot wait for its end."""
        unfinished = case.manner != "whole" or case.answers_many or (case.asks_one and not case.messages)
        try:
            async with asyncio.timeout(self._patience if unfinished else LONG):
                for message in case.messages:
                    await call.write(message)
                if case.manner == "whole":
                    await call.done_writing()
                if case.manner != "cancelled":
                    for _ in range(READ):
                        if await call.read() is EOF:
                            return await self._judged(await call.code(), await call.details())
        except TimeoutError:
            if not unfinished:
                return Answer("silence", f"no answer within {LONG:g} s")
        except (asyncio.InvalidStateError, OVER):  # it was over before all was said
            return await self._judged(await call.code(), await call.details())
        finally:
            call.cancel()
        return Answer("hung up")

    async def _judged(self, code: grpc.StatusCode, text: str | None) -> Answer:
        said = f"{code.name}: {text}"
        if text == OWN:
            return Answer("ended early")
        if code in BAD and not _lost(text or ""):
            return Answer(code.name, said)
        if code is Code.DEADLINE_EXCEEDED:
            return Answer(code.name, f"no answer within {LONG:g} s")
        if code is Code.UNAVAILABLE and _lost(text or ""):
            return Answer("connection lost", "" if await self._is_there() else f"nobody is there any more: {said}")
        return Answer(code.name)

    async def _is_there(self) -> bool:
        """A connection may be lost because of what others send, and this one, too; the node itself must be there
        again soon."""
        ask, loop = self._channels[0].unary_unary("/grpc.health.v1.Health/Check"), asyncio.get_running_loop()
        end = loop.time() + LONG
        while (left := end - loop.time()) > 0:
            try:
                await ask(b"", timeout=left, wait_for_ready=True)
                return True
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
        return False

    async def _timed(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await call
        finally:
            self._usual += 0.05 * (loop.time() - began - self._usual)

    @property
    def _patience(self) -> float:
        """On a busy machine everything takes longer, and silence means less."""
        return min(max(SHORT, 4 * self._usual), LONG / 10)

    def _method(self, path: str, one: bool) -> Any:
        self._next = (self._next + 1) % CHANNELS
        key = (self._next, path, one)
        if key not in self._methods:
            channel = self._channels[self._next]
            make: Callable[[str], Any] = channel.unary_unary if one else channel.stream_stream
            if len(self._methods) > 1000:
                self._methods.clear()
            self._methods[key] = make(path)
        return self._methods[key]


def _lost(text: str) -> bool:
    """What gRPC's client says when a connection is gone, or nobody listens."""
    return any(word in text.lower() for word in ("socket", "connect", "goaway", "transport", "stream removed"))
