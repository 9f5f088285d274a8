"""Messages of the enrolment: four bytes of length, then a JSON object. One request and answer per connection."""

from __future__ import annotations

import json
from typing import Any

from pfl_node.address import join_address, parse_address

ALPN = "pfl-enrol"
HEAD = 4  # bytes
CALLER_LIMIT = 16 << 10  # bytes of a message of anyone
OPERATOR_LIMIT = 1 << 20  # bytes of a message of the operator, and of an answer
POLL = 20.0  # seconds that a site's request waits for the operator before it is answered

Message = dict[str, Any]


class BadFrame(Exception):
    """Not a message of this protocol."""


def enrol_address(address: str) -> str:
    """By default the enrolment has the port above that of the bootstrap."""
    host, port = parse_address(address, what="bootstrap")
    return join_address(host, port + 1 if port < 65535 else port - 1)


def frame(message: Message) -> bytes:
    data = json.dumps(message, ensure_ascii=False).encode()
    return len(data).to_bytes(HEAD) + data


def size_of(head: bytes, limit: int) -> int:
    size = int.from_bytes(head)
    if not 0 < size <= limit:
        raise BadFrame(f"a message of {size} bytes; at most {limit} are possible")
    return size


def parse(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame("it is not JSON") from error
    if not isinstance(message, dict):
        raise BadFrame("it is not a JSON object")
    return message


def text_of(message: Message, key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise BadFrame(f"{key!r} is missing or no text")
    return value
