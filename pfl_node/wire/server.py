"""The Peer service: passes the calls of peers to its HostPort and turns refusals into gRPC statuses.

A handler makes no calls to other peers, and no input can stop the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import structlog

from pfl_node.errors import Reason, Refused
from pfl_node.failpoints import afailpoint
from pfl_node.learning.malloc import keep_memory
from pfl_node.model import Layout
from pfl_node.security.caller import CALLER, check_sender
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.async_codec import paced, pack_index, take
from pfl_node.wire.auto_encoding import AutoEncoding
from pfl_node.wire.bandwidth import Bandwidth, Bandwidths
from pfl_node.wire.codec import PARTS, Decoder, encode, misfit, read_header, truncated
from pfl_node.wire.content_names import ContentNames
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.framing import Chunk, parse, payload_bytes
from pfl_node.wire.partial_transfers import PartialTransfers
from pfl_node.wire.payload import Payload, Stream
from pfl_node.wire.statuses import REASON_KEY, STATUS, parsed, refusal_metadata
from pfl_node.wire.transfer_progress import QUIET, MessageSize, ProgressLimit

log = structlog.get_logger(__name__)

SERVICE = "pfl.v1.Peer"

Request = pb.HeadRequest | pb.ModelRequest | pb.PredictionsRequest
Context = Any  # grpc.aio.ServicerContext; its stubs lack write(bytes) and abort's metadata


class HostPort(Protocol):
    """The node as the wire sees it. All methods run on the event loop and, except coroutines, are fast.

    Every admitted call ends in exactly one of `deliver`, `evaluate`, `serve` or `cancel`, and every call, admitted
    or not, in one `count`.
    """

    def layout(self, part: Part) -> Layout:
        """Raises Refused if there is none, or none yet."""

    def admit(self, call: str, envelope: Envelope) -> None:
        """Decide from the header whether the call may proceed, checking the run too. Raises Refused."""

    def cancel(self, call: str, envelope: Envelope, *, resumes: bool = False) -> None:
        """An admitted call failed before its model was received. `resumes`: the sender may continue it."""

    def deliver(self, offer: Offer) -> None: ...

    async def evaluate(self, offer: Offer) -> Eval: ...

    def serve(self, part: Part) -> Offer:
        """The answer to GetModel, GetHead and GetPredictions."""

    async def compress(self, offer: Offer, to: PeerId, *, resumes: bool) -> Offer:
        """The answer to a caller that takes a partial model. `resumes`: it has a beginning of the last one."""

    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
        """A call has ended: "ok", a Reason or "internal"; the payload received or, for a Get, sent."""


class PeerService:
    """`attach` it to an endpoint before the endpoint is bound."""

    def __init__(
        self,
        host: HostPort,
        settings: WireSettings | None = None,
        *,
        status: Callable[[], pb.Status] = pb.Status,
        quiet: float = QUIET,
        encoding: AutoEncoding | None = None,
        bandwidths: Bandwidths | None = None,
    ) -> None:
        """`encoding` and `bandwidths`: those of the node's client, which also sends models to these peers."""
        self._host = host
        self._status = status
        self._settings = own = settings or WireSettings()
        self._quiet = quiet
        self._partial = PartialTransfers(own.resume, own.resume_bytes)
        self._encoding = encoding or AutoEncoding(own)
        self._bandwidths = bandwidths or Bandwidths(own.min_bandwidth, own.slowest)
        self._contents = ContentNames()

    def attach(self, endpoint: Endpoint) -> None:
        endpoint.add(SERVICE, self.register)

    def register(self, server: grpc.aio.Server) -> None:
        """Handlers take bytes: the codec reads ModelChunks, and requests that cannot be parsed are counted."""
        keep_memory()
        handlers = {
            "SendModel": grpc.stream_unary_rpc_method_handler(
                self._send_model, response_serializer=pb.Receipt.SerializeToString
            ),
            "EvaluateModel": grpc.stream_unary_rpc_method_handler(
                self._evaluate_model, response_serializer=pb.Score.SerializeToString
            ),
            "GetOffset": grpc.unary_unary_rpc_method_handler(
                self._get_offset, response_serializer=pb.Offset.SerializeToString
            ),
            "GetHead": grpc.unary_stream_rpc_method_handler(self._get_head),
            "GetModel": grpc.unary_stream_rpc_method_handler(self._get_model),
            "GetPredictions": grpc.unary_stream_rpc_method_handler(self._get_predictions),
            "GetStatus": grpc.unary_unary_rpc_method_handler(
                self._get_status, response_serializer=pb.Status.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def _send_model(self, _: object, context: Context) -> pb.Receipt:
        async with self._call("SendModel", context) as call:
            self._host.deliver(await self._receive(context, call))
        return pb.Receipt(bytes=call.nbytes)

    async def _evaluate_model(self, _: object, context: Context) -> pb.Score:
        async with self._call("EvaluateModel", context) as call:
            score = await self._host.evaluate(await self._receive(context, call))
        return pb.Score(loss=score.loss, accuracy=score.accuracy, samples=score.samples, score=score.score)

    async def _get_offset(self, message: bytes, context: Context) -> pb.Offset:
        async with self._call("GetOffset", context) as call:
            request = parsed(pb.OffsetRequest, message)
            call.admit(Envelope(PeerId(request.sender), request.run))
            call.hand_over()
            clock = asyncio.get_running_loop().time
            return pb.Offset(bytes=await self._partial.offset(request.sender, request.content, clock))

    async def _get_head(self, message: bytes, context: Context) -> None:
        async with self._call("GetHead", context) as call:
            await self._serve(parsed(pb.HeadRequest, message), "head", context, call)

    async def _get_model(self, message: bytes, context: Context) -> None:
        async with self._call("GetModel", context) as call:
            request = parsed(pb.ModelRequest, message)
            if request.part == pb.PART_PREDICTIONS:  # predictions have their own permission
                raise Refused(Reason.NOT_SERVED, "GetModel serves no predictions; use GetPredictions")
            await self._serve(request, PARTS.get(request.part, "model"), context, call)

    async def _get_predictions(self, message: bytes, context: Context) -> None:
        async with self._call("GetPredictions", context) as call:
            await self._serve(parsed(pb.PredictionsRequest, message), "predictions", context, call)

    async def _get_status(self, message: bytes, context: Context) -> pb.Status:
        async with self._call("GetStatus", context):
            parsed(pb.StatusRequest, message)
            return self._status()

    async def _receive(self, context: Context, call: IncomingCall) -> Offer:
        async with self._progress_limit() as progress:
            if not isinstance(message := await context.read(), bytes):
                raise truncated(0)
            chunk, envelope = read_header(message)
            call.admit(envelope)
            decoder = self._partial.decoder(chunk, envelope, self._host.layout(envelope.part), call.began)
            await self._receive_chunks(context, call, envelope.sender, decoder, chunk, progress)
        if await afailpoint("receive"):
            raise Refused(Reason.TRUNCATED, "discarded: fail point receive")
        offer = decoder.finish()
        call.hand_over()
        return offer

    async def _receive_chunks(
        self,
        context: Context,
        call: IncomingCall,
        sender: str,
        decoder: Decoder,
        chunk: Chunk,
        progress: Callable[[int], None],
    ) -> None:
        """Read chunks until the trailer. The decoder of a stream that breaks off is kept for a while."""
        task, clock, before = asyncio.current_task(), asyncio.get_running_loop().time, decoder.received
        assert task is not None
        reception = self._partial.begin(sender, decoder, task.cancel)
        try:
            while True:
                await take(decoder, chunk)
                call.nbytes = decoder.received - before
                progress(call.nbytes)
                if decoder.complete or not isinstance(message := await context.read(), bytes):
                    return
                chunk = parse(message)
        finally:
            call.resumes = self._partial.end(sender, reception, clock(), broken=not decoder.complete)

    async def _serve(self, request: Request, part: Part, context: Context, call: IncomingCall) -> None:
        call.admit(Envelope(PeerId(request.sender), request.run, part=part))
        call.hand_over()
        offer = self._host.serve(part)
        layout = offer.model.layout
        if request.layout not in ("", layout.digest):
            raise misfit(request.layout, layout)
        if isinstance(request, pb.PredictionsRequest) or not request.whole:
            resumes = isinstance(request, pb.ModelRequest) and bool(request.content)
            offer = await self._host.compress(offer, PeerId(request.sender), resumes=resumes)
        envelope = Envelope(
            offer.sender, request.run, offer.round, offer.tag, offer.samples, offer.notes, layout.part
        )
        bandwidth = self._bandwidths.of(PeerId(request.sender))
        payload = Payload(offer.model, offer.vectors)
        await pack_index(payload)
        settings = self._encoding.of(bandwidth, payload.size)
        stream = self._stream(request, payload, settings, bandwidth)
        encoded = encode(payload, envelope, settings, stream)
        messages = paced(encoded, threaded=settings.zstd > 0)
        clock = asyncio.get_running_loop().time
        try:
            async with self._progress_limit() as progress:
                async for message in messages:
                    began = clock()
                    await context.write(message)
                    call.nbytes += payload_bytes(message)
                    progress(call.nbytes)
                    if stream:
                        stream.size.wrote(clock() - began)
        except BaseException:
            bandwidth.broke(call.nbytes, clock() - call.began)
            raise
        bandwidth.moved(call.nbytes, clock() - call.began)

    def _stream(
        self, request: Request, payload: Payload, settings: WireSettings, bandwidth: Bandwidth
    ) -> Stream | None:
        """The stream that answers a fetch; None: a single message."""
        if payload.fits_one_message(settings, bandwidth.known):
            return None
        content, size = self._contents.of(payload, settings), MessageSize(settings.chunk, bandwidth.known)
        if isinstance(request, pb.ModelRequest) and request.content == content:
            return Stream(size, content, request.offset)
        return Stream(size, content)

    @asynccontextmanager
    async def _progress_limit(self) -> AsyncIterator[Callable[[int], None]]:
        """End a transfer that is slower than `wire.slowest`, so that no caller holds a slot forever. The block
        reports the bytes so far."""
        clock = asyncio.get_running_loop().time
        limit = ProgressLimit(self._quiet, self._settings.slowest, clock())

        def progress(nbytes: int) -> None:
            if (until := limit.moved(nbytes, clock())) != stall.when():
                stall.reschedule(until)

        try:
            async with asyncio.timeout_at(limit.until) as stall:
                yield progress
        except TimeoutError as error:
            raise Refused(Reason.TRUNCATED, limit.failure) from error

    @asynccontextmanager
    async def _call(self, name: str, context: Context) -> AsyncIterator[IncomingCall]:
        """Count the call exactly once, and end it with a status."""
        call = IncomingCall(self._host, name, asyncio.get_running_loop().time())
        try:
            yield call
            call.end("ok")
            return
        except Refused as refused:
            text, code, outcome = refused.text, STATUS[refused.reason], str(refused.reason)
            metadata = refusal_metadata(refused)
        except asyncio.CancelledError:
            call.end(str(Reason.TRUNCATED))
            raise
        except Exception:
            log.exception("a call failed", call=name, peer=call.peer)
            text, code, outcome = "internal error; see this node's log", grpc.StatusCode.INTERNAL, "internal"
            metadata = ((REASON_KEY, outcome),)
        call.end(outcome)
        await context.abort(code, text, trailing_metadata=metadata)


class IncomingCall:
    """One call of a peer, and whether the host has an admission to cancel."""

    def __init__(self, host: HostPort, name: str, now: float) -> None:
        self.began = now
        self.peer = CALLER.get() or ""  # authenticated by TLS, also if no valid header arrives
        self.nbytes = 0
        self._host = host
        self._name = name
        self._admitted: Envelope | None = None
        self.resumes = False  # its incomplete model is kept

    def admit(self, envelope: Envelope) -> None:
        self.peer = CALLER.get() or envelope.sender
        check_sender(envelope.sender)
        self._host.admit(self._name, envelope)
        self._admitted = envelope

    def hand_over(self) -> None:
        """From now on the host is responsible for the admission."""
        self._admitted = None

    def end(self, outcome: str) -> None:
        if self._admitted is not None:
            self._host.cancel(self._name, self._admitted, resumes=self.resumes)
            self._admitted = None
        self._host.count(self._name, outcome, self.peer, self.nbytes)
