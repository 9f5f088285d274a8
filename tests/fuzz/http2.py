"""HTTP/2 by hand, as far as it takes to break its rules: what gRPC's own client would never send."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.fuzz.byte_mutations import bent

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
NAMES = ("data", "headers", "priority", "reset", "settings", "push", "ping", "goaway", "window", "continuation")


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, size: int | None = None) -> bytes:
    """`size`: what the frame says of its length, where that is not true."""
    length = len(payload) if size is None else size
    return length.to_bytes(3, "big") + bytes((kind & 255, flags & 255)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is neither indexed nor compressed; short ones only."""
    return b"\x00" + bytes((len(name) & 127,)) + name + bytes((len(value) & 127,)) + value


def head(path: str, authority: str, **changed: str) -> bytes:
    lines = {":method": "POST", ":scheme": "http", ":path": path, ":authority": authority}
    lines |= {"te": "trailers", "content-type": "application/grpc", **changed}
    return b"".join(literal(name.encode(), value.encode()) for name, value in lines.items())


def grpc_message(data: bytes, *, packed: int = 0, size: int | None = None) -> bytes:
    return bytes((packed,)) + struct.pack(">I", len(data) if size is None else size & 0xFFFFFFFF) + data


def call(path: str, authority: str, data: bytes, stream: int = 1) -> list[bytes]:
    """The frames of one honest call."""
    return [
        frame(HEADERS, head(path, authority), flags=END_HEADERS, stream=stream),
        frame(DATA, grpc_message(data[:16000]), flags=END_STREAM, stream=stream),
    ]


def odd_frame(chance: Random) -> bytes:
    payload = chance.randbytes(chance.choice((0, 1, 4, 5, 6, 8, 100)))
    size = chance.choice((None, None, None, 0, len(payload) + 1, 0xFFFFFF))
    kind = chance.choice((*range(10), chance.randrange(256)))
    stream = chance.choice((0, 1, 2, 3, 0x7FFFFFFF, 0x80000001))
    return frame(kind, payload, flags=chance.choice((0, 1, 4, 5, 8, 0x20, 255)), stream=stream, size=size)


def odd_call(chance: Random, authority: str, request: tuple[str, bytes]) -> list[bytes]:
    path, data = request
    changed = chance.choice(
        (
            {"content-type": "text/html"},
            {"grpc-timeout": "1n"},
            {"grpc-timeout": "99999999999H"},
            {"grpc-encoding": "gzip"},
            {":method": "GET"},
            {":path": "\x00\xff"},
            {"te": ""},
            {"A": "b"},
        )
    )
    message = chance.choice(
        (
            grpc_message(data[:9000], size=chance.choice((0, 1, 1 << 20, 0xFFFFFFFF))),
            grpc_message(data[:9000], packed=1),
            grpc_message(data[:9000], packed=255),
            grpc_message(data[:9000])[: chance.randrange(5)],
        )
    )
    first = frame(HEADERS, head(path, authority, **changed), flags=END_HEADERS, stream=1)
    return [first, frame(DATA, message, flags=END_STREAM, stream=1)]


def reset_at_once(chance: Random, authority: str, request: tuple[str, bytes]) -> list[bytes]:
    """Calls that are opened and taken back, many on one connection."""
    found = []
    for n in range(chance.randrange(1, 60)):
        found.append(call(*request_of(authority, request), stream=2 * n + 1)[0])
        found.append(frame(RST, struct.pack(">I", chance.choice((0, 8, 77))), stream=2 * n + 1))
    return found


def request_of(authority: str, request: tuple[str, bytes]) -> tuple[str, str, bytes]:
    return request[0], authority, request[1]


def bursts(chance: Random, authority: str, request: tuple[str, bytes]) -> list[bytes]:
    """Pings, settings or empty data, over and over."""
    kind = chance.choice((PING, SETTINGS, DATA, WINDOW, PRIORITY, CONTINUATION))
    one = frame(
        kind, bytes({PING: 8, WINDOW: 4, PRIORITY: 5}.get(kind, 0)), stream=int(kind not in (PING, SETTINGS))
    )
    return [call(*request_of(authority, request))[0], *[one] * chance.randrange(1, 300)]


def odd_frames(chance: Random, authority: str, request: tuple[str, bytes]) -> list[bytes]:
    frames = call(*request_of(authority, request))
    for _ in range(chance.randrange(1, 5)):
        frames.insert(chance.randrange(len(frames) + 1), odd_frame(chance))
    return frames


def harmed(chance: Random, authority: str, request: tuple[str, bytes]) -> list[bytes]:
    return [bent(b"".join(call(*request_of(authority, request))), chance)]


WAYS: tuple[Callable[[Random, str, tuple[str, bytes]], list[bytes]], ...] = (
    *(odd_call, reset_at_once, bursts, odd_frames, harmed),
)


def garbage(chance: Random, authority: str, request: tuple[str, bytes]) -> tuple[bytes, ...]:
    """What is written to a fresh connection, in one or more pieces."""
    if chance.random() < 0.15:
        other = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", PREFACE[:-3], b"")
        return (chance.choice((*other, chance.randbytes(chance.randrange(1, 5000)))),)
    frames = chance.choice(WAYS)(chance, authority, request)
    whole = PREFACE + frame(SETTINGS) + b"".join(frames)
    at = chance.randrange(len(whole) + 1)
    return (whole,) if chance.random() < 0.5 else (whole[:at], whole[at:])


def spoken(data: bytes) -> str:
    """What the other side answered, by the last frame that says something: goaway, reset, headers …"""
    found = "nothing"
    while len(data) >= 9:
        kind = data[3]
        if kind < len(NAMES) and kind in (DATA, HEADERS, RST, GOAWAY):
            found = NAMES[kind]
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return found
