"""RPCs to other nodes: one pooled channel per peer, a deadline for every call, gRPC errors translated to ours."""

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
from pfl_node.wire.async_codec import QUIET, paced, take
from pfl_node.wire.bandwidth import Bandwidth
from pfl_node.wire.channels import ChannelPool
from pfl_node.wire.codec import (
    PART_NUMBERS,
    Decoder,
    encode,
    is_one_message,
    payload_size,
    read_header,
    truncated,
)
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.framing import parse
from pfl_node.wire.quirks.malloc import keep_memory
from pfl_node.wire.quirks.stream_status import StreamStatus
from pfl_node.wire.statuses import error_from_status

Direction = Literal["in", "out"]
METHOD = "/pfl.v1.Peer/"


@dataclass(slots=True)
class PeerTraffic:
    """Bytes and models transferred, by peer and direction."""

    bytes: Counter[tuple[PeerId, Direction]] = field(default_factory=Counter)
    models: Counter[tuple[PeerId, Direction]] = field(default_factory=Counter)
    tell: Callable[[str, Mapping[str, Any]], None] | None = None  # called for every model

    def add(self, peer: PeerId, direction: Direction, nbytes: int, call: str = "SendModel") -> None:
        self.bytes[peer, direction] += nbytes
        self.models[peer, direction] += 1
        if self.tell:
            kind = "sent" if direction == "out" else "received"
            self.tell(kind, {"call": call, "peer": peer, "bytes": nbytes})


class PeerStub:
    """The calls of the Peer service. ModelChunks stay bytes: the codec reads and writes them."""

    def __init__(self, channel: Any) -> None:
        replies = {"SendModel": pb.Receipt.FromString, "EvaluateModel": pb.Score.FromString}
        requests: dict[str, Any] = {
            "GetHead": pb.HeadRequest,
            "GetModel": pb.ModelRequest,
            "GetPredictions": pb.PredictionsRequest,
        }
        # On the wire, a unary request equals a stream of one message; gRPC needs fewer batches for the former.
        self.push_one = {
            call: channel.unary_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.push_stream = {
            call: channel.stream_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.pull = {
            call: channel.unary_stream(METHOD + call, request_serializer=request.SerializeToString)
            for call, request in requests.items()
        }
        self.status = channel.unary_unary(
            METHOD + "GetStatus",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.Status.FromString,
        )
        self.history = channel.unary_unary(
            METHOD + "GetHistory",
            request_serializer=pb.HistoryRequest.SerializeToString,
            response_deserializer=pb.History.FromString,
        )


class ErrorTranslation:
    """A context in which gRPC errors become PeerGone or Refused."""

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
            case TimeoutError():  # a stalled stream says nothing about the bandwidth
                raise PeerGone(self.peer, "the stream stalled") from error
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if task is None or not task.cancelling():
                    raise PeerGone(self.peer, "the channel was closed") from error


class PeerClient:
    """Every method raises PeerGone, or Refused with the peer's reason or with ours for an invalid answer."""

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
        self.traffic = PeerTraffic()
        self._quiet = quiet
        self._dialer = dialer or Dialer()
        self._pool = ChannelPool(self._dialer, PeerStub, connect_timeout=settings.connect_timeout)
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
        """Push a model; returns the number of bytes sent."""
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
        """Have the peer evaluate the model on its data."""
        envelope = Envelope(self.me, self.run, part=model.layout.part)
        score, _ = await self._push("EvaluateModel", peer, address, model, envelope)
        if score is None:  # gRPC's result if the reply cannot be parsed
            raise Refused(Reason.GARBAGE, "its answer is not a score", peer)
        # NaN is a valid accuracy: a task without classes has none.
        if not math.isfinite(score.loss) or score.accuracy < 0 or score.accuracy > 1:
            raise Refused(Reason.NOT_FINITE, f"its score is loss {score.loss}, accuracy {score.accuracy}", peer)
        own = score.score if score.HasField("score") else None
        if own is not None and not math.isfinite(own):
            raise Refused(Reason.NOT_FINITE, f"its score by the task's metric is {own}", peer)
        return Eval(score.loss, score.accuracy, score.samples, score=own)

    async def fetch(self, peer: PeerId, address: str, part: Part, layout: Layout) -> Offer:
        """Pull the peer's current model, a part of it or its predictions. `layout` is the layout of that part, or
        for a core or a head that of the whole model."""
        wanted = layout.of(part) if layout.part == "model" else layout
        bandwidth = self._bandwidth(peer)
        timeout = bandwidth.timeout(self.settings.base_timeout, wanted.nbytes)
        clock = asyncio.get_running_loop().time
        started = clock()
        async with self._stub(peer, address) as stub:
            name, request = self._request(part, wanted.digest)
            offer, moved = await self._receive(stub.pull[name](request, timeout=timeout), peer, wanted)
        bandwidth.moved(moved, clock() - started)
        self.traffic.add(peer, "in", moved, name)
        return offer

    async def status(self, address: str) -> pb.Status:
        """The status of the node at an address, read over a separate channel."""
        link = await self._dialer.dial(address, self.settings.connect_timeout)
        with ErrorTranslation(PeerId(address), Bandwidth(self.settings.min_bandwidth)):
            try:
                reply: pb.Status = await PeerStub(link.channel).status(
                    pb.StatusRequest(), timeout=self.settings.base_timeout
                )
            finally:
                await link.close()
        return reply

    async def look(
        self, peer: PeerId, address: str, *, after: int, timeout: float
    ) -> tuple[pb.Status, pb.History]:
        """The status of a peer and its history after that round."""
        async with self._stub(peer, address) as stub:
            status: pb.Status = await stub.status(pb.StatusRequest(), timeout=timeout)
            if status.round <= after + 1:
                return status, pb.History()
            history: pb.History = await stub.history(pb.HistoryRequest(after=after), timeout=timeout)
        return status, history

    def forget(self, peer: PeerId) -> None:
        """Close the channel to a peer that is dead or has moved; calls in progress end with PeerGone."""
        self._pool.forget(peer)
        self._bandwidths.pop(peer, None)

    async def close(self) -> None:
        await self._pool.close()

    async def _push(
        self, name: str, peer: PeerId, address: str, model: Model, envelope: Envelope
    ) -> tuple[Any, int]:
        size = payload_size(model.layout, self.settings)
        timeout = self._bandwidth(peer).timeout(self.settings.base_timeout, size)
        messages = encode(model, envelope, self.settings)
        threaded = self.settings.zstd > 0
        async with self._stub(peer, address) as stub:
            if is_one_message(model.layout, self.settings):
                message = await asyncio.to_thread(next, messages) if threaded else next(messages)
                reply, moved = await stub.push_one[name](message, timeout=timeout), len(message)
            else:
                call = stub.push_stream[name](timeout=timeout)
                reply, moved = await _write_all(call, paced(messages, threaded=threaded), self._quiet)
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

    async def _receive(self, call: Any, peer: PeerId, layout: Layout) -> tuple[Offer, int]:
        decoder: Decoder | None = None
        try:
            async with asyncio.timeout(self._quiet) as stall:
                async for message in call:
                    if decoder is None:
                        chunk, envelope = read_header(message)
                        self._check(envelope, peer, layout)
                        decoder = Decoder(chunk, envelope, layout)
                    else:
                        chunk = parse(message)
                    await take(decoder, chunk)
                    stall.reschedule(asyncio.get_running_loop().time() + self._quiet)
            if decoder is None:
                raise truncated(0)
            return decoder.finish(), decoder.received
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        finally:
            call.cancel()

    def _check(self, envelope: Envelope, peer: PeerId, layout: Layout) -> None:
        if envelope.sender != peer or envelope.run != self.run:
            raise Refused(Reason.UNKNOWN_PEER, f"{envelope.sender} of {envelope.run} answered")
        if envelope.part != layout.part:
            raise Refused(Reason.LAYOUT, f"asked for the {layout.part}, got the {envelope.part}")

    @asynccontextmanager
    async def _stub(self, peer: PeerId, address: str) -> AsyncIterator[PeerStub]:
        with ErrorTranslation(peer, self._bandwidth(peer)):
            async with self._pool.channel(address, peer=peer) as channel:
                yield channel.stub

    def _bandwidth(self, peer: PeerId) -> Bandwidth:
        return self._bandwidths.setdefault(peer, Bandwidth(self.settings.min_bandwidth))


async def _write_all(call: Any, messages: AsyncIterator[bytes], quiet: float) -> tuple[Any, int]:
    """The reply and the number of bytes sent. Raises TimeoutError if the peer stops reading."""
    status = StreamStatus(call)
    moved = 0
    try:
        async with asyncio.timeout(quiet) as stall:
            async for message in messages:
                await call.write(message)
                moved += len(message)
                stall.reschedule(asyncio.get_running_loop().time() + quiet)
            await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        pass  # the call has ended: awaiting it raises its status
    except BaseException:
        call.cancel()
        raise
    try:
        return await call, moved
    except grpc.aio.AioRpcError as error:
        raise status.corrected(error) from error
