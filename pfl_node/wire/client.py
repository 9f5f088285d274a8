"""Calls to other nodes: one reused channel per peer, a deadline on every call, errors in our own words."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from google.protobuf.message import Message

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.failpoints import afailpoint
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.async_codec import QUIET, absorb, paced
from pfl_node.wire.bandwidth import Bandwidth
from pfl_node.wire.channels import ChannelPool, PeerChannel
from pfl_node.wire.codec import PART_NUMBERS, Decoder, encode, is_one_message, payload_size
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.quirks.malloc import keep_memory
from pfl_node.wire.quirks.stream_status import StreamStatus
from pfl_node.wire.statuses import error_from_status

Direction = Literal["in", "out"]


@dataclass(slots=True)
class Traffic:
    """What went over the wire, by peer and direction."""

    bytes: Counter[tuple[PeerId, Direction]] = field(default_factory=Counter)
    models: Counter[tuple[PeerId, Direction]] = field(default_factory=Counter)
    tell: Callable[[str, Mapping[str, Any]], None] | None = None  # who wants to know of every model

    def add(self, peer: PeerId, direction: Direction, nbytes: int, call: str = "SendModel") -> None:
        self.bytes[peer, direction] += nbytes
        self.models[peer, direction] += 1
        if self.tell:
            kind = "sent" if direction == "out" else "received"
            self.tell(kind, {"call": call, "peer": peer, "bytes": nbytes})


class Translation:
    """Errors of gRPC become ours."""

    def __init__(self, peer: PeerId, bandwidth: Bandwidth) -> None:
        self.peer = peer
        self.bandwidth = bandwidth

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case grpc.aio.AioRpcError():
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.bandwidth.too_slow()
                raise error_from_status(error, self.peer) from error
            case grpc.aio.UsageError():
                raise PeerGone(self.peer, "the channel was closed") from error
            case TimeoutError():  # no reason to believe that the link is slow
                raise PeerGone(self.peer, "the stream stands still") from error
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if task is None or not task.cancelling():
                    raise PeerGone(self.peer, "the channel was closed") from error


class PeerClient:
    """Every method raises PeerGone, or Refused with the peer's reason (or ours, for what it answered)."""

    def __init__(
        self,
        me: PeerId,
        run: str,
        settings: WireSettings,
        dialer: Dialer | None = None,
        *,
        quiet: float = QUIET,
    ) -> None:
        keep_memory()
        self.me = me
        self.run = run
        self.settings = settings
        self.traffic = Traffic()
        self._quiet = quiet
        self._dialer = dialer or Dialer()
        self._lines = ChannelPool(self._dialer, settings.connect_timeout)
        self._bandwidths: dict[PeerId, Bandwidth] = {}

    async def send(
        self,
        peer: PeerId,
        address: str,
        model: Model,
        *,
        round: int | None = None,
        tag: int = 0,
        samples: int = 0,
        notes: Mapping[str, float] | None = None,
    ) -> int:
        """Push a model; the answer is the number of bytes that moved."""
        if await afailpoint("send.before"):
            raise PeerGone(peer, "not sent: fail point send.before")
        envelope = Envelope(self.me, self.run, round, tag, samples, notes or {}, model.layout.part)
        started = asyncio.get_running_loop().time()
        _, moved = await self._push("SendModel", peer, address, model, envelope)
        self._bandwidth(peer).moved(moved, asyncio.get_running_loop().time() - started)
        if await afailpoint("send.after"):
            raise PeerGone(peer, "sent, but its receipt was lost: fail point send.after")
        return moved

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval:
        """The peer scores my model on its data."""
        envelope = Envelope(self.me, self.run, part=model.layout.part)
        score, _ = await self._push("EvaluateModel", peer, address, model, envelope)
        if score is None:  # what gRPC gives when the answer is no Score
            raise Refused(Reason.GARBAGE, "its answer is not a score", peer)
        # An accuracy of NaN is right: a task without classes has none.
        if not math.isfinite(score.loss) or score.accuracy < 0 or score.accuracy > 1:
            raise Refused(Reason.NOT_FINITE, f"its score is loss {score.loss}, accuracy {score.accuracy}", peer)
        return Eval(score.loss, score.accuracy, score.samples)

    async def fetch(self, peer: PeerId, address: str, part: Part, layout: Layout) -> Offer:
        """Pull the peer's current model, a part of it or its predictions. `layout` is that of what is pulled; for
        a core or a head the whole model's will do."""
        wanted = layout.of(part) if layout.part == "model" else layout
        bandwidth = self._bandwidth(peer)
        timeout = bandwidth.timeout(self.settings.base_timeout, wanted.nbytes)
        clock = asyncio.get_running_loop().time
        started = clock()
        async with self._calling(peer, address) as line:
            name, request = self._request(part, wanted.digest)
            call = line.get[name](request, timeout=timeout)
            offer, moved = await self._take(call, peer, wanted)
        bandwidth.moved(moved, clock() - started)
        self.traffic.add(peer, "in", moved, name)
        return offer

    async def status(self, address: str) -> pb.Status:
        """What the node there tells of itself; for a look from outside, so on a channel of its own."""
        link = await self._dialer.dial(address, self.settings.connect_timeout)
        with Translation(PeerId(address), Bandwidth(self.settings.min_bandwidth)):
            async with link.channel:
                reply: pb.Status = await PeerChannel(address, link).status(
                    pb.StatusRequest(), timeout=self.settings.base_timeout
                )
        return reply

    async def look(
        self, peer: PeerId, address: str, *, after: int, timeout: float
    ) -> tuple[pb.Status, pb.History]:
        """How a peer is, and how it did after that round; on the channel that models take, too."""
        async with self._calling(peer, address) as line:
            status: pb.Status = await line.status(pb.StatusRequest(), timeout=timeout)
            if status.round <= after + 1:
                return status, pb.History()
            history: pb.History = await line.history(pb.HistoryRequest(after=after), timeout=timeout)
        return status, history

    def forget(self, peer: PeerId) -> None:
        """Close the channel to a peer that is dead or has moved; calls under way end with PeerGone."""
        self._lines.forget(peer)
        self._bandwidths.pop(peer, None)

    async def close(self) -> None:
        await self._lines.close()

    # -- inside --------------------------------------------------------------------------------------------

    async def _push(
        self, name: str, peer: PeerId, address: str, model: Model, envelope: Envelope
    ) -> tuple[Any, int]:
        size = payload_size(model.layout, self.settings)
        timeout = self._bandwidth(peer).timeout(self.settings.base_timeout, size)
        messages = encode(model, envelope, self.settings)
        threaded = self.settings.zstd > 0
        async with self._calling(peer, address) as line:
            if is_one_message(model.layout, self.settings):
                message = await asyncio.to_thread(next, messages) if threaded else next(messages)
                reply, moved = await line.whole[name](message, timeout=timeout), len(message)
            else:
                call = line.chunks[name](timeout=timeout)
                reply, moved = await _stream(call, paced(messages, threaded=threaded), self._quiet)
        self.traffic.add(peer, "out", moved, name)
        return reply, moved

    def _request(self, part: Part, digest: str) -> tuple[str, Message]:
        match part:
            case "head":
                return "GetHead", pb.HeadRequest(sender=self.me, run=self.run, layout=digest)
            case "predictions":
                return "GetPredictions", pb.PredictionsRequest(sender=self.me, run=self.run, layout=digest)
            case _:
                number: Any = PART_NUMBERS[part]
                return "GetModel", pb.ModelRequest(sender=self.me, run=self.run, layout=digest, part=number)

    async def _take(self, call: Any, peer: PeerId, layout: Layout) -> tuple[Offer, int]:
        def check(envelope: Envelope) -> None:
            if envelope.sender != peer or envelope.run != self.run:
                raise Refused(Reason.UNKNOWN_PEER, f"{envelope.sender} of {envelope.run} answered")
            if envelope.part != layout.part:
                raise Refused(Reason.LAYOUT, f"asked for the {layout.part}, got the {envelope.part}")

        decoder = Decoder(lambda _: layout, check)
        try:
            async with asyncio.timeout(self._quiet) as patience:
                async for message in call:
                    await absorb(decoder, message)
                    patience.reschedule(asyncio.get_running_loop().time() + self._quiet)
            return decoder.finish(), decoder.received
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        finally:
            call.cancel()

    @asynccontextmanager
    async def _calling(self, peer: PeerId, address: str) -> AsyncIterator[PeerChannel]:
        async with self._lines.to(peer, address) as line:
            with Translation(peer, self._bandwidth(peer)):
                yield line

    def _bandwidth(self, peer: PeerId) -> Bandwidth:
        return self._bandwidths.setdefault(peer, Bandwidth(self.settings.min_bandwidth))


async def _stream(call: Any, messages: AsyncIterator[bytes], quiet: float) -> tuple[Any, int]:
    """Write everything; the answer, and how many bytes moved. TimeoutError: the other end takes nothing more."""
    ending = StreamStatus(call)
    moved = 0
    try:
        async with asyncio.timeout(quiet) as patience:
            async for message in messages:
                await call.write(message)
                moved += len(message)
                patience.reschedule(asyncio.get_running_loop().time() + quiet)
            await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        pass  # it is over already: its status tells why
    except BaseException:
        call.cancel()
        raise
    try:
        return await call, moved
    except grpc.aio.AioRpcError as error:
        raise ending.true(error) from error
