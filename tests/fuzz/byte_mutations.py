"""What happens to bytes that are no longer understood: flipped, cut, doubled, mixed. Chance is handed in."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

LARGEST = 1 << 16  # bytes of noise, mostly
BEYOND = (3 << 19) + 1  # one byte more than the node takes in a message


def noise(chance: Random) -> bytes:
    """Short ones mostly; now and then one that is larger than any message may be."""
    if chance.random() < 0.002:
        return chance.randbytes(64) * (BEYOND // 64 + 1)
    return chance.randbytes(int(LARGEST ** chance.random()) - 1)


def flipped(data: bytes, chance: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def near_the_front(data: bytes, chance: Random) -> bytes:
    """The header of a large message is short; what is done anywhere hardly ever hits it."""
    front = min(len(data), 200)
    return flipped(data[:front], chance) + data[front:]


def cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def beheaded(data: bytes, chance: Random) -> bytes:
    return data[chance.randrange(len(data) + 1) :]


def doubled(data: bytes, chance: Random) -> bytes:
    """Protobuf takes two messages in a row for one, in which the later fields win."""
    return data * chance.choice((2, 2, 3))


def stuttered(data: bytes, chance: Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    piece = data[start : start + chance.randrange(1, 64)]
    return data[:start] + piece * chance.randrange(2, 20) + data[start:]


def overwritten(data: bytes, chance: Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    piece = chance.choice((b"\xff" * 10, bytes(8), b"\x80" * 12, chance.randbytes(chance.randrange(1, 32))))
    return data[:start] + piece + data[start + len(piece) :]


def inserted(data: bytes, chance: Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + chance.randbytes(chance.randrange(1, 16)) + data[start:]


WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(flipped, near_the_front, cut, beheaded, doubled, stuttered, overwritten, inserted),
)


def bent(data: bytes, chance: Random) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(WAYS)(data, chance)
    return data


def spliced(one: bytes, other: bytes, chance: Random) -> bytes:
    """The beginning of one and the end of another."""
    return cut(one, chance) + beheaded(other, chance)
