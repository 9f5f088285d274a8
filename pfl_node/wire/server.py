"""The Peer service: turns calls into questions to its HostPort, and refusals into precise gRPC statuses.

A handler never calls out to other peers, and nothing a caller sends can stop the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from pfl_node.errors import Reason, Refused
from pfl_node.failpoints import afailpoint
from pfl_node.model import Layout
from pfl_node.security.caller import CALLER, check_sender
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.async_codec import QUIET, absorb, paced
from pfl_node.wire.codec import PARTS, Decoder, encode, misfit
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.quirks.malloc import keep_memory
from pfl_node.wire.statuses import REASON_KEY, STATUS, refusal_metadata

log = structlog.get_logger(__name__)

SERVICE = "pfl.v1.Peer"

Request = pb.HeadRequest | pb.ModelRequest | pb.PredictionsRequest
Context = Any  # grpc.aio.ServicerContext; its stubs know neither write's bytes nor abort's metadata
T = TypeVar("T")
M = TypeVar("M", bound=Message)


class HostPort(Protocol):
    """The node as the wire sees it. All run on the event loop and are quick, `evaluate` excepted.

    What is admitted ends in exactly one of `deliver`, `evaluate`, `serve` or `cancel`, and every call, admitted or
    not, in one `count`.
    """

    def layout(self, part: Part) -> Layout:
        """Raises Refused while there is none yet, or when there is none at all."""

    def admit(self, call: str, envelope: Envelope) -> None:
        """May this call go on, as its header says? Raises Refused. The run is checked here."""

    def cancel(self, call: str, envelope: Envelope) -> None:
        """It was admitted, but what it brought did not arrive or cannot be used."""

    def deliver(self, offer: Offer) -> None: ...

    async def evaluate(self, offer: Offer) -> Eval: ...

    def serve(self, part: Part) -> Offer:
        """What GetModel, GetHead and GetPredictions answer with."""

    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
        """A call is over: "ok", a Reason or "internal"; the payload that came in, or went out for a Get."""


class PeerService:
    """`attach` it to an endpoint before that is bound."""

    def __init__(
        self,
        host: HostPort,
        settings: WireSettings | None = None,
        *,
        status: Callable[[], pb.Status] = pb.Status,
        quiet: float = QUIET,
    ) -> None:
        self._host = host
        self._status = status
        self._settings = settings or WireSettings()
        self._quiet = quiet

    def attach(self, endpoint: Endpoint) -> None:
        endpoint.add(SERVICE, self.register)

    def register(self, server: grpc.aio.Server) -> None:
        """What comes is left as bytes: ModelChunks are the codec's, and a garbled request must be counted, too."""
        keep_memory()
        handlers = {
            "SendModel": grpc.stream_unary_rpc_method_handler(
                self._send_model, response_serializer=pb.Receipt.SerializeToString
            ),
            "EvaluateModel": grpc.stream_unary_rpc_method_handler(
                self._evaluate_model, response_serializer=pb.Score.SerializeToString
            ),
            "GetHead": grpc.unary_stream_rpc_method_handler(self._get_head),
            "GetModel": grpc.unary_stream_rpc_method_handler(self._get_model),
            "GetPredictions": grpc.unary_stream_rpc_method_handler(self._get_predictions),
            "GetStatus": grpc.unary_unary_rpc_method_handler(
                self._get_status, response_serializer=pb.Status.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    # -- the calls -----------------------------------------------------------------------------------------

    async def _send_model(self, _: object, context: Context) -> pb.Receipt:
        async def work(visit: Visit) -> pb.Receipt:
            offer = await self._receive(context, visit)
            visit.handed_over()
            self._host.deliver(offer)
            return pb.Receipt(bytes=visit.nbytes)

        return await self._attend("SendModel", context, work)

    async def _evaluate_model(self, _: object, context: Context) -> pb.Score:
        async def work(visit: Visit) -> pb.Score:
            offer = await self._receive(context, visit)
            visit.handed_over()
            score = await self._host.evaluate(offer)
            return pb.Score(loss=score.loss, accuracy=score.accuracy, samples=score.samples)

        return await self._attend("EvaluateModel", context, work)

    async def _get_head(self, message: bytes, context: Context) -> None:
        async def work(visit: Visit) -> None:
            await self._serve(_parsed(pb.HeadRequest, message), "head", context, visit)

        await self._attend("GetHead", context, work)

    async def _get_model(self, message: bytes, context: Context) -> None:
        async def work(visit: Visit) -> None:
            request = _parsed(pb.ModelRequest, message)
            if request.part == pb.PART_PREDICTIONS:  # whether they are served is another question than for models
                raise Refused(Reason.NOT_SERVED, "GetModel gives no predictions; GetPredictions does")
            await self._serve(request, PARTS.get(request.part, "model"), context, visit)

        await self._attend("GetModel", context, work)

    async def _get_predictions(self, message: bytes, context: Context) -> None:
        async def work(visit: Visit) -> None:
            await self._serve(_parsed(pb.PredictionsRequest, message), "predictions", context, visit)

        await self._attend("GetPredictions", context, work)

    async def _get_status(self, message: bytes, context: Context) -> pb.Status:
        async def work(visit: Visit) -> pb.Status:  # noqa: ARG001
            _parsed(pb.StatusRequest, message)
            return self._status()

        return await self._attend("GetStatus", context, work)

    # -- what they share -----------------------------------------------------------------------------------

    async def _receive(self, context: Context, visit: Visit) -> Offer:
        decoder = Decoder(visit.layout, visit.admit)
        try:
            async with asyncio.timeout(self._quiet) as patience:
                while isinstance(message := await context.read(), bytes):
                    await absorb(decoder, message)
                    visit.nbytes = decoder.received
                    if decoder.complete:
                        break
                    patience.reschedule(min(self._soon(), visit.began + self._longest(visit.size)))
        except TimeoutError as error:
            raise self._stalled(visit, visit.size) from error
        if await afailpoint("receive"):
            raise Refused(Reason.TRUNCATED, "thrown away: fail point receive")
        return decoder.finish()

    async def _serve(self, request: Request, part: Part, context: Context, visit: Visit) -> None:
        visit.admit(Envelope(PeerId(request.sender), request.run, part=part))
        visit.handed_over()
        offer = self._host.serve(part)
        layout = offer.model.layout
        if request.layout not in ("", layout.digest):
            raise misfit(request.layout, layout)
        envelope = Envelope(
            offer.sender, request.run, offer.round, offer.tag, offer.samples, offer.notes, layout.part
        )
        messages = encode(offer.model, envelope, self._settings)
        try:
            async with asyncio.timeout(self._quiet) as patience:
                async for message in paced(messages, threaded=self._settings.zstd > 0):
                    await context.write(message)
                    visit.nbytes += len(message)
                    patience.reschedule(min(self._soon(), visit.began + self._longest(layout.nbytes)))
        except TimeoutError as error:
            raise self._stalled(visit, layout.nbytes) from error

    def _soon(self) -> float:
        return asyncio.get_running_loop().time() + self._quiet

    def _longest(self, nbytes: int) -> float:
        """Seconds that a stream may take in all: a caller must not hold a place for ever, a byte at a time."""
        return self._quiet + nbytes / self._settings.slowest

    def _stalled(self, visit: Visit, nbytes: int) -> Refused:
        if self._soon() - self._quiet >= visit.began + self._longest(nbytes):
            return Refused(Reason.TRUNCATED, f"slower than {self._settings.slowest:g} bytes a second")
        return Refused(Reason.TRUNCATED, f"nothing moved for {self._quiet:g} s")

    async def _attend(self, call: str, context: Context, work: Callable[[Visit], Awaitable[T]]) -> T:
        """Whatever happens, the call is counted once and ends with a status."""
        visit = Visit(self._host, call, asyncio.get_running_loop().time())
        try:
            answer = await work(visit)
            visit.end("ok")
            return answer
        except Refused as refused:
            failure, code, outcome = refused.text, STATUS[refused.reason], str(refused.reason)
            told = refusal_metadata(refused)
        except asyncio.CancelledError:
            visit.end(str(Reason.TRUNCATED))
            raise
        except Exception:
            log.exception("a call failed", call=call, peer=visit.peer)
            failure, code, outcome = (
                "something is wrong on this node; see its log",
                grpc.StatusCode.INTERNAL,
                "internal",
            )
            told = ((REASON_KEY, outcome),)
        visit.end(outcome)
        await context.abort(code, failure, trailing_metadata=told)
        raise AssertionError("abort returns never")


def _parsed(kind: type[M], message: bytes) -> M:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise Refused(Reason.GARBAGE, f"the message is not a {kind.DESCRIPTOR.name}") from error


class Visit:
    """One call from its header to its end."""

    def __init__(self, host: HostPort, call: str, now: float) -> None:
        self.began = now
        self.peer = ""
        self.nbytes = 0
        self.size = 0  # bytes of the model that comes, as its header says
        self._host = host
        self._call = call
        self._admitted: Envelope | None = None

    def admit(self, envelope: Envelope) -> None:
        self.peer = CALLER.get() or envelope.sender
        check_sender(envelope.sender)
        self._host.admit(self._call, envelope)
        self._admitted = envelope

    def layout(self, part: Part) -> Layout:
        found = self._host.layout(part)
        self.size = found.nbytes
        return found

    def handed_over(self) -> None:
        """From here on the host looks after what it admitted."""
        self._admitted = None

    def end(self, outcome: str) -> None:
        if self._admitted is not None:
            self._host.cancel(self._call, self._admitted)
            self._admitted = None
        self._host.count(self._call, outcome, self.peer, self.nbytes)
