"""Keeps what the besieged node is told within its swarm: no address in a message may lead to anybody else.

A node calls the members that it hears of. Those that are invented here live where nobody listens.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from google.protobuf.message import DecodeError, Message

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError
from tests.fuzz.grammar import walk
from tests.fuzz.surface import Descriptor, Field, kind_of

NOWHERE = "127.66."  # a part of loopback that nothing is bound to, with ports that nobody has
PORTS = 1000


class Place(NamedTuple):
    """A word of a message that is the address of somebody."""

    owner: Message
    field: Field
    word: str


def places(data: bytes, kind: Descriptor) -> tuple[Message | None, list[Place]]:
    """The message as it is read, and all places that it names."""
    try:
        message = kind_of(kind).FromString(data)
    except DecodeError:
        return None, []
    words = ((owner, field, word) for owner, field, word in walk(message) if isinstance(word, str))
    return message, [Place(*found) for found in words if leads_somewhere(found[2])]


class AddressFilter:
    """Knows the addresses of the swarm."""

    def __init__(self, mine: Collection[str]) -> None:
        self._mine = frozenset(mine)

    def within(self, data: bytes, kind: Descriptor) -> bytes:
        """The same message, or one whose addresses lead nowhere; what cannot be read leads nowhere anyway."""
        message, named = places(data, kind)
        astray = [place for place in named if place.word not in self._mine]
        for owner, field, word in astray:
            if field.is_repeated:
                owner.ClearField(field.name)
            else:
                setattr(owner, field.name, nowhere(word))
        return message.SerializeToString() if message and astray else data


@lru_cache(maxsize=65536)
def leads_somewhere(word: str) -> bool:
    try:
        host, port = parse_address(word)
    except ConfigError:
        return False
    return not host.startswith(NOWHERE) or port > PORTS


def nowhere(word: str) -> str:
    """Another place for every word, and the same for the same."""
    number = crc32(word.encode())
    return f"{NOWHERE}{number >> 8 & 255}.{number & 255}:{1 + (number >> 16) % PORTS}"
