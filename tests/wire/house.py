"""A small real host: a mailbox, a layout, a model to serve. And both ends of the wire on localhost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import numpy as np

from pfl_node.errors import Reason, Refused
from pfl_node.mailbox import Limits, Mailbox
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import Envelope
from pfl_node.wire.endpoint import Endpoint, channel_options
from pfl_node.wire.server import PeerService

RUN = "run"
ANN, BOB = PeerId("ann"), PeerId("bob")


def layout_of(core: int, head: int = 10) -> Layout:
    return Layout((Entry("core", (core,)),), (Entry("head", (head,)),))


def model_of(layout: Layout, seed: int = 0) -> Model:
    return Model(layout, np.random.default_rng(seed).standard_normal(layout.size, dtype=np.float32))


class House:
    """Bob's node, as the wire sees it."""

    def __init__(self, layout: Layout, *, limits: Limits | None = None) -> None:
        self.whole = layout
        self.mailbox = Mailbox(limits)
        self.current = model_of(layout, seed=99)
        self.ready = True
        self.counts: Counter[tuple[str, str]] = Counter()
        self.nbytes = 0
        self.admitted = 0
        self.cancelled = 0
        self.news = asyncio.Event()  # a call was admitted or ended

    def layout(self, part: Part) -> Layout:
        if not self.ready:
            raise Refused(Reason.NOT_READY, "still starting")
        return self.whole.of(part)

    def admit(self, call: str, envelope: Envelope) -> None:
        if envelope.run != RUN:
            raise Refused(Reason.UNKNOWN_RUN, f"{envelope.run} is not my run")
        if call == "SendModel":
            self.mailbox.admit(PeerId(envelope.sender), envelope.round)
        self.admitted += 1
        self._tell()

    def cancel(self, call: str, envelope: Envelope) -> None:
        self.cancelled += 1
        if call == "SendModel":
            self.mailbox.cancel(PeerId(envelope.sender), envelope.round)

    def deliver(self, offer: Offer) -> None:
        self.mailbox.put(offer)

    async def evaluate(self, offer: Offer) -> Eval:
        await asyncio.sleep(0)
        return Eval(float(np.abs(offer.model.vector).mean()), 0.5, 7)

    def serve(self, part: Part) -> Offer:
        return Offer(BOB, self.current.of(part), round=4, samples=12)

    def status(self) -> pb.Status:
        return pb.Status(id=BOB, state="training", round=4)

    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
        self.counts[call, outcome] += 1
        self.nbytes += nbytes
        self._tell()

    async def counted(self, call: str, outcome: str) -> None:
        """Wait until such a call has ended."""
        await self.until(lambda house: house.counts[call, outcome] > 0)

    async def until(self, holds: Callable[[House], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(self):
                await self.news.wait()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


@asynccontextmanager
async def serving(
    house: House, settings: WireSettings | None = None, *, quiet: float = 30.0
) -> AsyncIterator[str]:
    """Bob's address."""
    endpoint = Endpoint()
    PeerService(house, settings, quiet=quiet).attach(endpoint)
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    try:
        yield endpoint.address
    finally:
        await endpoint.stop(grace=0)


@asynccontextmanager
async def calling(
    settings: WireSettings | None = None, *, me: PeerId = ANN, run: str = RUN
) -> AsyncIterator[PeerClient]:
    client = PeerClient(me, run, settings or WireSettings())
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def raw_channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        yield channel
