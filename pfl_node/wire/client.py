"""RPCs to other nodes: one pooled channel per peer, a deadline for every call, gRPC errors translated to ours."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from google.protobuf.message import Message

from pfl_node.errors import PeerGone, PeerTimedOut, Reason, Refused
from pfl_node.failpoints import afailpoint
from pfl_node.learning.malloc import keep_memory
from pfl_node.model import Layout, Model
from pfl_node.protocol.mailbox import check_vectors
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.async_codec import pack_index
from pfl_node.wire.auto_encoding import AutoEncoding
from pfl_node.wire.bandwidth import Bandwidth, Bandwidths
from pfl_node.wire.channels import ChannelPool
from pfl_node.wire.codec import PART_NUMBERS, encode
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.dials import Dials
from pfl_node.wire.download import Download
from pfl_node.wire.framing import payload_bytes
from pfl_node.wire.payload import ONE_MESSAGE, Payload
from pfl_node.wire.peer_stub import PeerStub
from pfl_node.wire.statuses import error_from_status
from pfl_node.wire.transfer_progress import QUIET
from pfl_node.wire.upload import Upload

Direction = Literal["in", "out"]

LONGEST = 300.0  # seconds for a fetch or a score request that makes progress
PULLS: dict[Part, str] = {"head": "GetHead", "predictions": "GetPredictions"}  # RPC by part; others: GetModel
RECONNECT = 60.0  # seconds to reach a peer again after a transfer broke off
MOST_DETACHED = 4  # transfers to peers that were declared dead
FIRST_DELAY, MOST_DELAY = 0.5, 5.0  # seconds between the attempts


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
            case TimeoutError():  # a stalled stream is not a measurement of the bandwidth
                raise PeerTimedOut(self.peer, "the stream stalled") from error
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
        longest: float = LONGEST,
    ) -> None:
        keep_memory()
        self.me = me
        self.run = run
        self.settings = settings
        self.traffic = PeerTraffic()
        self.encoding = AutoEncoding(settings)
        self.bandwidths = Bandwidths(settings.min_bandwidth, settings.slowest)  # bandwidths to the peers
        self._incoming = Bandwidths(settings.min_bandwidth, settings.slowest)
        self._quiet = quiet
        self._longest = longest
        self._transfers: dict[PeerId, dict[Upload | Download, None]] = {}
        self._detached: dict[PeerId, tuple[str, asyncio.Task[Any]]] = {}  # uploads to peers declared dead
        self._dialer = dialer or Dialer()
        self.dials = Dials(random.Random(me))
        self._pool = ChannelPool(
            self._dialer, PeerStub, connect_timeout=settings.connect_timeout, dials=self.dials
        )

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
        vectors: Mapping[str, Model] | None = None,
    ) -> int:
        """Push a model; returns the number of bytes sent."""
        if await afailpoint("send.before"):
            raise PeerGone(peer, "not sent: fail point send.before")
        envelope = Envelope(self.me, self.run, round, tag, samples, notes or {}, model.layout.part)
        _, moved = await self._push("SendModel", peer, address, Payload(model, vectors or {}), envelope)
        if await afailpoint("send.after"):
            raise PeerGone(peer, "sent, but its receipt was lost: fail point send.after")
        return moved

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval:
        """Have the peer evaluate the model on its data."""
        envelope = Envelope(self.me, self.run, part=model.layout.part)
        try:
            async with asyncio.timeout(self._longest):
                score, _ = await self._push("EvaluateModel", peer, address, Payload(model), envelope)
        except TimeoutError as error:
            raise PeerGone(peer, f"no score within {self._longest:g} s") from error
        if score is None:  # gRPC's result if the reply cannot be parsed
            raise Refused(Reason.GARBAGE, "its answer is not a score", peer)
        # NaN is a valid accuracy: a task without classes has none.
        if not math.isfinite(score.loss) or score.accuracy < 0 or score.accuracy > 1:
            raise Refused(Reason.NOT_FINITE, f"its score is loss {score.loss}, accuracy {score.accuracy}", peer)
        own = score.score if score.HasField("score") else None
        if own is not None and not math.isfinite(own):
            raise Refused(Reason.NOT_FINITE, f"its score by the task's metric is {own}", peer)
        return Eval(score.loss, score.accuracy, score.samples, score=own)

    async def fetch(
        self,
        peer: PeerId,
        address: str,
        part: Part,
        layout: Layout,
        *,
        vectors: Mapping[str, Part] | None = None,
        whole: bool = False,
    ) -> Offer:
        """Pull the peer's current model, a part of it or its predictions, with these vectors. `layout` is the
        layout of that part, or for a core or a head that of the whole model. `whole`: not a partial one."""
        wanted = layout.of(part) if layout.part == "model" else layout

        def check(found: Envelope) -> None:
            self._check(found, peer, wanted)
            check_vectors(peer, found.vectors, vectors or {})

        download = Download(wanted, self.settings, self._quiet, check)
        clock, bandwidth = asyncio.get_running_loop().time, self._incoming.of(peer)
        started = clock()
        try:
            async with asyncio.timeout(self._longest):
                with self._transfer(peer, download):
                    offer = await self._fetch(peer, address, part, wanted, download, whole=whole)
        except TimeoutError as error:
            raise PeerGone(peer, f"its {part} did not arrive within {self._longest:g} s") from error
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        bandwidth.moved(download.received, clock() - started)
        self.traffic.add(peer, "in", download.received, PULLS.get(part, "GetModel"))
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

    async def connect(self, peer: PeerId, address: str) -> None:
        """Dial a peer that could not be dialled, if it is not connected."""
        await self._pool.connect(peer, address)

    def abandon(self, peer: PeerId) -> None:
        """Stop dialling a peer whose record says that it cannot be dialled."""
        self._pool.abandon(peer)

    def forget(self, peer: PeerId) -> None:
        """Close the channel to a peer that is dead or has moved; calls in progress end with PeerGone."""
        for transfer in self._transfers.get(peer, ()):
            transfer.abandoned = len(self._detached) >= MOST_DETACHED or not transfer.detach()
        self._pool.forget(peer)

    def transferring(self, peer: PeerId) -> bool:
        """Whether a model is being sent to the peer. A transfer without progress ends by itself."""
        return any(isinstance(one, Upload) and one.moved for one in self._transfers.get(peer, ()))

    async def close(self) -> None:
        detached = [task for _, task in self._detached.values()]
        for task in detached:
            task.cancel()
        await asyncio.gather(*detached, return_exceptions=True)
        await self._pool.close()

    async def _push(
        self, name: str, peer: PeerId, address: str, payload: Payload, envelope: Envelope
    ) -> tuple[Any, int]:
        bandwidth = self.bandwidths.of(peer)
        await pack_index(payload)
        settings = self.encoding.of(bandwidth, payload.size)
        if payload.fits_one_message(settings, bandwidth.known):
            messages = encode(payload, envelope, settings)
            return await self._push_one(name, peer, address, messages, settings)
        upload = Upload(payload, envelope, settings, bandwidth, self._quiet)
        if name == "SendModel":
            return await self._detachable(peer, address, upload), upload.moved
        return await self._upload(name, peer, address, upload), upload.moved

    async def _push_one(
        self, name: str, peer: PeerId, address: str, messages: Iterator[bytes], settings: WireSettings
    ) -> tuple[Any, int]:
        clock, bandwidth = asyncio.get_running_loop().time, self.bandwidths.of(peer)
        started = clock()
        async with self._stub(peer, address) as stub:
            message = await asyncio.to_thread(next, messages) if settings.zstd else next(messages)
            timeout = bandwidth.timeout(settings.base_timeout, len(message))
            reply = await stub.push_one[name](message, timeout=timeout)
        if name == "SendModel":
            bandwidth.moved(len(message), clock() - started)
        self.traffic.add(peer, "out", nbytes := payload_bytes(message), name)
        return reply, nbytes

    async def _detachable(self, peer: PeerId, address: str, upload: Upload) -> Any:
        """If the peer is declared dead during the transfer, the caller need not wait. The transfer continues for a
        while in the background, because a broken link is often restored soon. The next transfer waits for it."""
        at, before = self._detached.get(peer, (address, None))
        if before is not None:
            if at != address:
                before.cancel()
            await asyncio.wait((before,))
        task = asyncio.create_task(self._upload("SendModel", peer, address, upload))
        try:
            await asyncio.wait((task, upload.detached), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        if task.done():
            return task.result()
        self._detached[peer] = address, task
        task.add_done_callback(lambda done: self._reattached(peer, done))
        raise PeerGone(peer, "declared dead during a transfer")

    def _reattached(self, peer: PeerId, task: asyncio.Task[Any]) -> None:
        if self._detached.get(peer, ("", None))[1] is task:
            del self._detached[peer]
        if not task.cancelled():
            task.exception()  # retrieve it: no caller waits for this transfer

    async def _upload(self, name: str, peer: PeerId, address: str, upload: Upload) -> Any:
        with self._transfer(peer, upload):
            while True:
                try:
                    async with self._stub(peer, address) as stub:
                        reply = await upload.attempt(stub.push_stream[name]())
                    self.traffic.add(peer, "out", upload.moved, name)
                    return reply
                except (PeerGone, Refused) as error:
                    if not upload.may_continue(error):
                        raise
                    upload.offset = await self._offset(peer, address, upload, error)

    async def _offset(self, peer: PeerId, address: str, upload: Upload, error: PeerGone | Refused) -> int:
        """The offset to continue from. Raises the error that broke the transfer if it cannot be continued."""
        request = pb.OffsetRequest(sender=self.me, run=self.run, content=upload.content)
        clock, delay = asyncio.get_running_loop().time, FIRST_DELAY
        end = clock() + min(RECONNECT, self.settings.resume)
        while True:
            await asyncio.sleep(delay)
            try:
                async with self._stub(peer, address) as stub:
                    reply: pb.Offset = await stub.offset(request, timeout=self.settings.base_timeout)
            except (PeerGone, Refused) as refused:
                delay = min(2 * delay, MOST_DELAY)
                final = isinstance(refused, Refused) and refused.reason is not Reason.NOT_READY
                if final or upload.abandoned or clock() + delay > end:
                    raise error from None
            else:
                if upload.complete and not reply.bytes:  # only the receipt was lost, or the receiver kept nothing
                    raise error
                return reply.bytes

    async def _fetch(
        self, peer: PeerId, address: str, part: Part, layout: Layout, download: Download, *, whole: bool
    ) -> Offer:
        clock, bandwidth, delay = asyncio.get_running_loop().time, self._incoming.of(peer), FIRST_DELAY
        end = clock() + RECONNECT
        while True:
            name, request = self._request(part, layout.digest, *download.offset, whole=whole)
            patience = bandwidth.timeout(self.settings.base_timeout, min(layout.nbytes, ONE_MESSAGE))
            try:
                async with self._stub(peer, address) as stub:
                    return await download.attempt(stub.pull[name](request), patience)
            except (PeerGone, Refused) as error:
                if download.moved:
                    delay, end = FIRST_DELAY, clock() + RECONNECT
                else:
                    bandwidth.too_slow()
                if not download.may_continue(error) or clock() + delay > end:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, MOST_DELAY)

    @contextmanager
    def _transfer(self, peer: PeerId, transfer: Upload | Download) -> Iterator[None]:
        mine = self._transfers.setdefault(peer, {})
        mine[transfer] = None
        try:
            yield
        finally:
            del mine[transfer]
            if not mine:
                self._transfers.pop(peer, None)

    def _request(
        self, part: Part, digest: str, content: bytes, offset: int, *, whole: bool
    ) -> tuple[str, Message]:
        me: Any = {"sender": self.me, "run": self.run, "layout": digest}
        match part:
            case "head":
                return PULLS[part], pb.HeadRequest(**me, whole=whole)
            case "predictions":
                return PULLS[part], pb.PredictionsRequest(**me)
            case _:
                more: Any = {"part": PART_NUMBERS[part], "content": content, "offset": offset, "whole": whole}
                return "GetModel", pb.ModelRequest(**me, **more)

    def _check(self, envelope: Envelope, peer: PeerId, layout: Layout) -> None:
        if envelope.sender != peer or envelope.run != self.run:
            raise Refused(Reason.UNKNOWN_PEER, f"{envelope.sender} of {envelope.run} answered")
        if envelope.part != layout.part:
            raise Refused(Reason.LAYOUT, f"asked for the {layout.part}, got the {envelope.part}")

    @asynccontextmanager
    async def _stub(self, peer: PeerId, address: str) -> AsyncIterator[PeerStub]:
        with ErrorTranslation(peer, self.bandwidths.of(peer)):
            async with self._pool.channel(address, peer=peer) as channel:
                yield channel.stub
