"""Requests and answers of HTTP's CONNECT, which asks a proxy or a relay for a connection."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from dataclasses import dataclass

FIRST = b"CONNECT "  # how a request begins
LONGEST = 4096  # bytes of a request or an answer
END = b"\r\n\r\n"
BEARER = "Bearer "
SUFFIX = ".relay:443"
REQUEST = re.compile(r"CONNECT ([!-~]{1,300}) HTTP/1\.[01]")
STATUS = re.compile(r"HTTP/1\.[01] (\d{3})(?: (.*))?")
OK, FORBIDDEN, TOO_MANY, TIMED_OUT = 200, 403, 429, 504


class ConnectRefused(OSError):
    """A proxy or a relay did not open the connection."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(errno.EHOSTUNREACH, f"{status} {text}".strip() if status else text)
        self.status = status

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    target: str
    authorization: str = ""  # the value of Proxy-Authorization

    def encode(self) -> bytes:
        lines = [f"CONNECT {self.target} HTTP/1.1", f"Host: {self.target}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: {self.authorization}")
        return "\r\n".join(lines).encode() + END


def parse_request(head: bytes) -> ConnectRequest | None:
    """None if it is not a complete request and nothing else."""
    if not head.endswith(END) or not head.isascii():
        return None
    first, *lines = head[: -len(END)].decode().split("\r\n")
    matched = REQUEST.fullmatch(first)
    if matched is None:
        return None
    fields = (line.partition(":") for line in lines)
    values = {name.strip().lower(): value.strip() for name, _, value in fields}
    return ConnectRequest(matched[1], values.get("proxy-authorization", ""))


def answer(status: int, text: str) -> bytes:
    return f"HTTP/1.1 {status} {text}".encode() + END


async def ask(connection: socket.socket, request: ConnectRequest) -> None:
    """Ask for the connection. Raises ConnectRefused, or OSError."""
    await asyncio.get_running_loop().sock_sendall(connection, request.encode())
    await read_answer(connection)


async def read_answer(connection: socket.socket) -> None:
    """Read the answer to a request. Nothing that follows the answer is read."""
    loop = asyncio.get_running_loop()
    head = b""
    while not head.endswith(END):
        if len(head) >= LONGEST:
            raise ConnectRefused(0, "the answer to CONNECT is too long")
        if not (part := await loop.sock_recv(connection, 1)):
            raise ConnectRefused(0, "the connection was closed before the answer to CONNECT")
        head += part
    matched = STATUS.match(head.decode("latin-1"))
    status = int(matched[1]) if matched else 0
    if status != OK:
        raise ConnectRefused(status, (matched[2] or "").strip()[:200] if matched else "the answer is not HTTP")
