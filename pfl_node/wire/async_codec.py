"""The codec on an event loop: one chunk at a time, and compression and large indices in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from pfl_node.model import PartialModel
from pfl_node.wire.codec import Decoder
from pfl_node.wire.framing import Chunk
from pfl_node.wire.payload import Payload

LARGE = 1 << 18  # numbers of a partial model whose index takes some milliseconds to pack


async def paced(messages: Iterator[bytes], *, threaded: bool) -> AsyncIterator[bytes]:
    """The messages as they are encoded. Compressing one may take a second; zstd releases the GIL."""
    while True:
        message = await asyncio.to_thread(next, messages, None) if threaded else next(messages, None)
        if message is None:
            return
        yield message


async def pack_index(payload: Payload) -> None:
    """The payload keeps it."""
    if isinstance(payload.model, PartialModel) and payload.model.indices.size >= LARGE:
        await asyncio.to_thread(lambda: payload.present)


async def take(decoder: Decoder, chunk: Chunk) -> None:
    if not decoder.heavy:
        decoder.take(chunk)
        return
    work = asyncio.ensure_future(asyncio.to_thread(decoder.take, chunk))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)  # the decoder may be kept and used again
        raise
