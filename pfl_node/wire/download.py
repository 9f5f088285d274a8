"""The download of one model from one peer, in as many streams as it takes: a stream that breaks off is
continued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pfl_node.errors import PeerError, PeerGone, Reason, Refused
from pfl_node.model import Layout
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Offer
from pfl_node.wire.async_codec import take
from pfl_node.wire.codec import Decoder, read_header, truncated
from pfl_node.wire.framing import Chunk, parse
from pfl_node.wire.transfer_progress import ProgressLimit

LEAST = 1 << 16  # bytes; below this, fetching again is as fast as continuing


class Download:
    """`check` raises Refused if an answer is not what was asked for."""

    def __init__(
        self, layout: Layout, settings: WireSettings, quiet: float, check: Callable[[Envelope], None]
    ) -> None:
        self.received = 0  # bytes in all streams
        self.abandoned = False  # the peer is gone
        self._layout = layout
        self._settings = settings
        self._quiet = quiet
        self._check = check
        self._decoder: Decoder | None = None
        self.moved = 0  # bytes in the last stream

    @property
    def offset(self) -> tuple[bytes, int]:
        """The name of the content that has begun to arrive, and the number of bytes received."""
        if self._decoder is None or not self._decoder.resumable:
            return b"", 0
        return self._decoder.content, self._decoder.received

    async def attempt(self, call: Any, patience: float) -> Offer:
        """Raises TimeoutError if nothing arrives for `patience` seconds, or too little afterwards."""
        clock = asyncio.get_running_loop().time
        limit: ProgressLimit | None = None
        self.moved = 0
        try:
            async with asyncio.timeout(patience) as stall:
                async for message in call:
                    chunk = self._begin(message) if limit is None else parse(message)
                    limit = limit or ProgressLimit(self._quiet, self._settings.slowest, clock())
                    assert self._decoder is not None
                    await take(self._decoder, chunk)
                    self.moved += len(chunk.data)
                    self.received += len(chunk.data)
                    if limit.moved(self.moved, clock()) != stall.when():
                        stall.reschedule(limit.until)
            if limit is None or self._decoder is None:
                raise truncated(0)
            return self._decoder.finish()
        finally:
            call.cancel()

    def detach(self) -> bool:
        """A download from a dead peer ends."""
        return False

    def may_continue(self, error: PeerError) -> bool:
        broken = isinstance(error, PeerGone) or (isinstance(error, Refused) and error.reason is Reason.TRUNCATED)
        return broken and not self.abandoned and self._settings.resume > 0 and self.offset[1] >= LEAST

    def _begin(self, message: bytes) -> Chunk:
        """The peer continues where the last stream broke off, or begins again."""
        chunk, envelope = read_header(message)
        assert chunk.header is not None
        self._check(envelope)
        if self._decoder is not None and chunk.header.offset:
            self._decoder.resume(chunk, envelope)
        else:
            self._decoder = Decoder(chunk, envelope, self._layout)
        return chunk
