"""A small real host: a mailbox, layouts, a model and predictions. And both ends of the wire on localhost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import grpc
import numpy as np

from pfl_node.errors import Reason, Refused
from pfl_node.model import Entry, Layout, Model
from pfl_node.predictions import pack
from pfl_node.protocol.mailbox import Limits, Mailbox
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import encode
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint, channel_options
from pfl_node.wire.server import PeerService
from pfl_node.wire.tls import Tls

RUN = "run"
ANN, BOB = PeerId("ann"), PeerId("bob")


def layout_of(core: int, head: int = 10) -> Layout:
    return Layout((Entry("core", (core,)),), (Entry("head", (head,)),))


def model_of(layout: Layout, seed: int = 0) -> Model:
    return Model(layout, np.random.default_rng(seed).standard_normal(layout.size, dtype=np.float32))


def predictions_of(layout: Layout, seed: int = 0) -> Model:
    """As a trained node would say them: rows mostly sure of one class, few strange samples, uneven classes."""
    chance = np.random.default_rng(seed)
    samples, classes = layout.entries[0].shape
    logits = 4 * chance.standard_normal((samples, classes), dtype=np.float32)
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    strange = chance.gamma(2.0, 0.01, samples) + 1e-4
    return pack(layout, rows / rows.sum(axis=1, keepdims=True), strange, chance.integers(0, 6000, classes))


def chunks_of(model: Model, how: WireSettings | None = None, *, sender: PeerId = ANN) -> list[pb.ModelChunk]:
    """What travels, as somebody else's client would have it."""
    messages = encode(model, Envelope(sender, RUN), how or WireSettings())
    return [pb.ModelChunk.FromString(message) for message in messages]


class FakeHost:
    """Bob's node, as the wire sees it. `auxiliary` is the layout of its predictions; None: there are none."""

    def __init__(self, layout: Layout, auxiliary: Layout | None = None, *, limits: Limits | None = None) -> None:
        self.whole = layout
        self.auxiliary = auxiliary
        self.mailbox = Mailbox(limits, takes=("model", "predictions"))
        self.current = model_of(layout, seed=99)
        self.resumes = list[bool]()  # of each model that was served
        self.said = None if auxiliary is None else predictions_of(auxiliary, seed=99)
        self.me = BOB
        self.tag = 0
        self.notes: Mapping[str, float] = {}
        self.vectors: Mapping[str, Model] = {}
        self.closed: set[str] = set()  # calls that are not served
        self.ready = True
        self.counts: Counter[tuple[str, str]] = Counter()
        self.nbytes = 0
        self.admitted = 0
        self.cancelled = 0
        self.news = asyncio.Event()  # a call was admitted or ended

    def layout(self, part: Part) -> Layout:
        if not self.ready:
            raise Refused(Reason.NOT_READY, "still starting")
        if part != "predictions":
            return self.whole.of(part)
        if self.auxiliary is None:
            raise Refused(Reason.LAYOUT, "this node has no auxiliary data")
        return self.auxiliary

    def admit(self, call: str, envelope: Envelope) -> None:
        if envelope.run != RUN:
            raise Refused(Reason.UNKNOWN_RUN, f"{envelope.run} is not my run")
        if call in self.closed:
            raise Refused(Reason.NOT_SERVED, f"this node does not serve {call}")
        if call == "EvaluateModel" and envelope.part != "model":
            raise Refused(Reason.LAYOUT, f"{envelope.part} alone cannot be evaluated")
        if call == "SendModel":
            self.mailbox.admit(PeerId(envelope.sender), envelope.round, envelope.part, vectors=envelope.vectors)
        self.admitted += 1
        self._tell()

    def cancel(self, call: str, envelope: Envelope, *, resumes: bool = False) -> None:
        self.cancelled += 1
        if call == "SendModel":
            self.mailbox.cancel(PeerId(envelope.sender), envelope.round)

    def deliver(self, offer: Offer) -> None:
        self.mailbox.put(offer)

    async def evaluate(self, offer: Offer) -> Eval:
        await asyncio.sleep(0)
        return Eval(float(np.abs(offer.model.vector).mean()), 0.5, 7)

    def serve(self, part: Part) -> Offer:
        served = self.predictions() if part == "predictions" else self.current.of(part)
        return Offer(self.me, served, 4, self.tag, 12, self.notes, self.vectors)

    async def compress(self, offer: Offer, to: PeerId, *, resumes: bool) -> Offer:
        self.resumes.append(resumes)
        return offer

    def predictions(self) -> Model:
        self.layout("predictions")  # raises where there can be none
        if self.said is None:
            raise Refused(Reason.NOT_READY, "no predictions yet")
        return self.said

    def status(self) -> pb.Status:
        return pb.Status(id=BOB, state="training", round=4)

    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
        self.counts[call, outcome] += 1
        self.nbytes += nbytes
        self._tell()

    async def counted(self, call: str, outcome: str) -> None:
        """Wait until such a call has ended."""
        await self.until(lambda host: host.counts[call, outcome] > 0)

    async def until(self, holds: Callable[[FakeHost], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(self):
                await self.news.wait()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


@asynccontextmanager
async def serving(
    host: FakeHost, settings: WireSettings | None = None, *, quiet: float = 30.0, tls: Tls | None = None
) -> AsyncIterator[str]:
    """Bob's address."""
    endpoint = Endpoint(tls=tls)
    PeerService(host, settings, status=host.status, quiet=quiet).attach(endpoint)
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    try:
        yield endpoint.address
    finally:
        await endpoint.stop(grace=0)


@asynccontextmanager
async def calling(
    settings: WireSettings | None = None,
    *,
    me: PeerId = ANN,
    run: str = RUN,
    dialer: Dialer | None = None,
    quiet: float = 30.0,
) -> AsyncIterator[PeerClient]:
    client = PeerClient(me, run, settings or WireSettings(), dialer, quiet=quiet)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def raw_channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        yield channel
