"""Incomplete models whose streams broke off, kept so that the sender can continue instead of starting again.

The decoder is kept: its vector is already allocated, so an incomplete model costs as much memory as a whole one.
They are limited to one for each sender, and in bytes, number and time. Time is passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout
from pfl_node.types import Envelope
from pfl_node.wire.codec import Decoder
from pfl_node.wire.framing import Chunk

LEAST = 1 << 16  # bytes; below this, sending again is as fast as continuing
MOST = 64  # incomplete models
MIN_CONTENT = 8  # bytes of a name that others cannot guess

Key = tuple[str, bytes]  # the sender, and its name for the encoded bytes


@dataclass(frozen=True, slots=True)
class KeptTransfer:
    decoder: Decoder
    until: float


@dataclass(slots=True, eq=False)
class Reception:
    """A stream that is being received. `stop` ends it, so that another stream can continue."""

    decoder: Decoder
    stop: Callable[[], object]
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PartialTransfers:
    def __init__(self, seconds: float, nbytes: int) -> None:
        self._seconds = seconds
        self._most = nbytes
        self._kept: dict[Key, KeptTransfer] = {}  # oldest first
        self._open: dict[Key, Reception] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(kept.decoder.nbytes for kept in self._kept.values())

    def decoder(self, first: Chunk, envelope: Envelope, layout: Layout, now: float) -> Decoder:
        """The decoder of a new stream or of one that continues. Raises Refused."""
        assert first.header is not None
        self._expire(now)
        kept = self._kept.pop((envelope.sender, first.header.content), None) if first.header.offset else None
        if kept is None:
            return Decoder(first, envelope, layout)
        if kept.decoder.layout != layout:  # the node has reloaded its task
            raise Refused(Reason.TRUNCATED, "the incomplete model does not fit any more; send it again")
        kept.decoder.resume(first, envelope)
        return kept.decoder

    def begin(self, sender: str, decoder: Decoder, stop: Callable[[], object]) -> Reception:
        reception = Reception(decoder, stop)
        self._open.setdefault((sender, decoder.content), reception)
        return reception

    def end(self, sender: str, reception: Reception, now: float, *, broken: bool) -> bool:
        """The stream has ended; returns whether the incomplete model is kept."""
        key = sender, reception.decoder.content
        if self._open.get(key) is reception:
            del self._open[key]
        reception.ended.set()
        return broken and self._keep(key, reception.decoder, now)

    async def offset(self, sender: str, content: bytes, clock: Callable[[], float]) -> int:
        """The number of bytes of this content that were received. If a stream of it is still open, it is ended:
        the sender has reconnected."""
        if reception := self._open.get((sender, content)):
            reception.stop()
            await reception.ended.wait()
        self._expire(clock())
        kept = self._kept.get((sender, content))
        return kept.decoder.received if kept else 0

    def _keep(self, key: Key, decoder: Decoder, now: float) -> bool:
        self._expire(now)
        unusable = not decoder.resumable or decoder.received < LEAST or len(key[1]) < MIN_CONTENT
        if unusable or not self._seconds:
            return False
        for old in [one for one in self._kept if one[0] == key[0]]:
            del self._kept[old]
        self._kept[key] = KeptTransfer(decoder, now + self._seconds)
        while len(self._kept) > 1 and (len(self._kept) > MOST or self.nbytes > self._most):
            del self._kept[next(iter(self._kept))]
        return True

    def _expire(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            del self._kept[key]
