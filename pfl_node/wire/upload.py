"""The upload of one model to one peer, in as many streams as it takes: a stream that breaks off is continued."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from pfl_node.errors import PeerError, PeerGone, Reason, Refused
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope
from pfl_node.wire.async_codec import paced
from pfl_node.wire.bandwidth import MARGIN, Bandwidth
from pfl_node.wire.codec import encode
from pfl_node.wire.content_names import new_name
from pfl_node.wire.framing import payload_bytes
from pfl_node.wire.payload import Payload, Stream
from pfl_node.wire.quirks.stream_status import StreamStatus
from pfl_node.wire.transfer_progress import MessageSize, ProgressLimit

LEAST = 1 << 16  # bytes that a stream must have moved to be continued
BUFFERED = 4 << 20  # bytes that may be in flight when the last message is written
REPEATED = 3  # multiple of the model's size that may be written in all streams together


class Upload:
    def __init__(
        self, payload: Payload, envelope: Envelope, settings: WireSettings, bandwidth: Bandwidth, quiet: float
    ) -> None:
        self.moved = 0  # bytes written in all streams
        self.offset = 0  # where the next stream begins
        self.complete = False  # the last message was written
        self.abandoned = False  # the peer is gone
        self.detached: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # no caller waits
        self.content = new_name()
        self._payload = payload
        self._envelope = envelope
        self._settings = settings
        self._bandwidth = bandwidth
        self._quiet = quiet
        self._sent = 0  # bytes written in this stream

    async def attempt(self, call: Any) -> Any:
        """The reply. Raises TimeoutError if the peer accepts no more bytes, is too slow or does not answer."""
        clock, status = asyncio.get_running_loop().time, StreamStatus(call)
        began = clock()
        try:
            async with asyncio.timeout(self._quiet) as stall:
                with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await self._write_all(call, stall)  # if the call has ended, awaiting it raises its status
                stall.reschedule(clock() + self._answer_time(clock() - began))
                reply = await call
        except grpc.aio.AioRpcError as error:
            self._bandwidth.broke(self._sent, clock() - began)
            raise status.corrected(error) from error
        except BaseException:
            self._bandwidth.broke(self._sent, clock() - began)
            call.cancel()
            raise
        self._bandwidth.moved(self._sent, clock() - began)
        return reply

    def detach(self) -> bool:
        """The peer was declared dead. Returns whether the transfer continues without its caller."""
        if self._sent >= LEAST and not self.detached.done():
            self.detached.set_result(None)
        return self.detached.done()

    def may_continue(self, error: PeerError) -> bool:
        """Whether it makes sense to ask the peer how much has arrived."""
        broken = isinstance(error, PeerGone) or (isinstance(error, Refused) and error.reason is Reason.TRUNCATED)
        most = REPEATED * self._payload.size(self._settings)
        return (
            broken
            and not self.abandoned
            and self._settings.resume > 0
            and self._sent >= LEAST
            and self.moved < most
        )

    async def _write_all(self, call: Any, stall: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time
        limit = ProgressLimit(self._quiet, self._settings.slowest, clock())
        size = MessageSize(self._settings.chunk, self._bandwidth.known)
        stream = Stream(size, self.content, self.offset)
        messages = encode(self._payload, self._envelope, self._settings, stream)
        self._sent, self.complete, until = 0, False, limit.until
        async for message in paced(messages, threaded=self._settings.zstd > 0):
            before = clock()
            await call.write(message)
            self._sent += (nbytes := payload_bytes(message))
            self.moved += nbytes
            size.wrote((now := clock()) - before)
            if limit.moved(self._sent, now) != until:
                stall.reschedule(until := limit.until)
        await call.done_writing()
        self.complete = True

    def _answer_time(self, elapsed: float) -> float:
        """Seconds for the bytes still in flight, and for the answer."""
        buffered = min(self._sent, BUFFERED)
        seconds = elapsed * buffered / self._sent if self._sent else 0.0
        return self._settings.base_timeout + MARGIN * max(seconds, buffered / self._bandwidth.rate)
