"""The codec beside a running event loop: a chunk at a time, and what may take long in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from pfl_node.wire.codec import Decoder
from pfl_node.wire.framing import parse

QUIET = 30.0  # seconds without a chunk after which a stream is over, at both of its ends


async def paced(messages: Iterator[bytes], *, threaded: bool) -> AsyncIterator[bytes]:
    """Messages as they are made. Compression may need a second for one, and lets go of the interpreter."""
    while True:
        message = await asyncio.to_thread(next, messages, None) if threaded else next(messages, None)
        if message is None:
            return
        yield message


async def absorb(decoder: Decoder, message: bytes) -> None:
    """Feed the decoder."""
    chunk = parse(message)
    decoder.begin(chunk)
    if decoder.heavy:
        await asyncio.to_thread(decoder.take, chunk)
    else:
        decoder.take(chunk)
