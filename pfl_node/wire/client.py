"""Calls to other nodes: one reused channel per peer, a deadline on every call, errors in our own words."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from google.protobuf.message import Message

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.failpoints import afailpoint
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.bandwidth import Bandwidth
from pfl_node.wire.codec import PART_NUMBERS, Decoder, Envelope, encode, is_one_message, payload_size
from pfl_node.wire.ending import Ending
from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.heap import keep_memory
from pfl_node.wire.pace import absorb, paced
from pfl_node.wire.refusal import blame

Direction = Literal["in", "out"]
METHOD = "/pfl.v1.Peer/"


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


class Line:
    """The channel to one peer and the calls on it. ModelChunks stay bytes: the codec reads and writes them."""

    def __init__(self, address: str, connect_timeout: float) -> None:
        self.address = address
        self.channel = _dial(address, connect_timeout)
        replies = {"SendModel": pb.Receipt.FromString, "EvaluateModel": pb.Score.FromString}
        requests: dict[str, Any] = {
            "GetHead": pb.HeadRequest,
            "GetModel": pb.ModelRequest,
            "GetPredictions": pb.PredictionsRequest,
        }
        # One message and a stream of one are the same on the wire; the former takes gRPC fewer batches.
        self.whole = {
            call: self.channel.unary_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.chunks = {
            call: self.channel.stream_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.status = self._ask("GetStatus", pb.StatusRequest, pb.Status)
        self.history = self._ask("GetHistory", pb.HistoryRequest, pb.History)
        self.get = {
            call: self.channel.unary_stream(METHOD + call, request_serializer=request.SerializeToString)
            for call, request in requests.items()
        }

    def _ask(self, call: str, request: Any, reply: Any) -> Any:
        return self.channel.unary_unary(
            METHOD + call, request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


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
                raise blame(error, self.peer) from error
            case grpc.aio.UsageError():
                raise PeerGone(self.peer, "the channel was closed") from error
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if task is None or not task.cancelling():
                    raise PeerGone(self.peer, "the channel was closed") from error


class PeerClient:
    """Every method raises PeerGone, or Refused with the peer's reason (or ours, for what it answered)."""

    def __init__(self, me: PeerId, run: str, settings: WireSettings) -> None:
        keep_memory()
        self.me = me
        self.run = run
        self.settings = settings
        self.traffic = Traffic()
        self._lines: dict[PeerId, Line] = {}
        self._bandwidths: dict[PeerId, Bandwidth] = {}
        self._closing: set[asyncio.Task[None]] = set()

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
        line = self._line(peer, address)
        bandwidth = self._bandwidth(peer)
        timeout = bandwidth.timeout(self.settings.base_timeout, wanted.nbytes)
        clock = asyncio.get_running_loop().time
        started = clock()
        with self._in_our_words(peer):
            name, request = self._request(part, wanted.digest)
            call = line.get[name](request, timeout=timeout)
            offer, moved = await self._take(call, peer, wanted)
        bandwidth.moved(moved, clock() - started)
        self.traffic.add(peer, "in", moved, name)
        return offer

    async def status(self, address: str) -> pb.Status:
        """What the node there tells of itself; for a look from outside, so on a channel of its own."""
        with Translation(PeerId(address), Bandwidth(self.settings.min_bandwidth)):
            async with _dial(address, self.settings.connect_timeout) as channel:
                call = channel.unary_unary(
                    METHOD + "GetStatus",
                    request_serializer=pb.StatusRequest.SerializeToString,
                    response_deserializer=pb.Status.FromString,
                )
                reply: pb.Status = await call(pb.StatusRequest(), timeout=self.settings.base_timeout)
        return reply

    async def look(
        self, peer: PeerId, address: str, *, after: int, timeout: float
    ) -> tuple[pb.Status, pb.History]:
        """How a peer is, and how it did after that round; on the channel that models take, too."""
        line = self._line(peer, address)
        with self._in_our_words(peer):
            status: pb.Status = await line.status(pb.StatusRequest(), timeout=timeout)
            if status.round <= after + 1:
                return status, pb.History()
            history: pb.History = await line.history(pb.HistoryRequest(after=after), timeout=timeout)
        return status, history

    def forget(self, peer: PeerId) -> None:
        """Close the channel to a peer that is dead or has moved; calls under way end with PeerGone."""
        line = self._lines.pop(peer, None)
        self._bandwidths.pop(peer, None)
        if line is not None:
            task = asyncio.get_running_loop().create_task(line.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for peer in list(self._lines):
            self.forget(peer)
        await asyncio.gather(*self._closing)

    # -- inside --------------------------------------------------------------------------------------------

    async def _push(
        self, name: str, peer: PeerId, address: str, model: Model, envelope: Envelope
    ) -> tuple[Any, int]:
        line = self._line(peer, address)
        size = payload_size(model.layout, self.settings)
        timeout = self._bandwidth(peer).timeout(self.settings.base_timeout, size)
        messages = encode(model, envelope, self.settings)
        threaded = self.settings.zstd > 0
        with self._in_our_words(peer):
            if is_one_message(model.layout, self.settings):
                message = await asyncio.to_thread(next, messages) if threaded else next(messages)
                reply, moved = await line.whole[name](message, timeout=timeout), len(message)
            else:
                call = line.chunks[name](timeout=timeout)
                reply, moved = await _stream(call, paced(messages, threaded=threaded))
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
            async for message in call:
                await absorb(decoder, message)
            return decoder.finish(), decoder.received
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        finally:
            call.cancel()

    def _in_our_words(self, peer: PeerId) -> Translation:
        return Translation(peer, self._bandwidth(peer))

    def _line(self, peer: PeerId, address: str) -> Line:
        line = self._lines.get(peer)
        if line is not None and line.address != address:
            self.forget(peer)
            line = None
        if line is None:
            line = self._lines[peer] = Line(address, self.settings.connect_timeout)
        return line

    def _bandwidth(self, peer: PeerId) -> Bandwidth:
        return self._bandwidths.setdefault(peer, Bandwidth(self.settings.min_bandwidth))


def _dial(address: str, connect_timeout: float) -> Any:
    """A channel, not connected yet; Any, as its published types know no calls with bytes."""
    return grpc.aio.insecure_channel(address, options=channel_options(connect_timeout))


async def _stream(call: Any, messages: AsyncIterator[bytes]) -> tuple[Any, int]:
    """Write everything; the answer, and how many bytes moved."""
    ending = Ending(call)
    moved = 0
    try:
        async for message in messages:
            await call.write(message)
            moved += len(message)
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
