"""Vectors beside the model of a message: over the codec, over gRPC, and every way to get them wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import MAX_VECTORS, Offer, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import decode, encode
from tests.netns.proxy import Net
from tests.unit.wire.small_host import ANN, BOB, FakeHost, calling, serving
from tests.unit.wire.test_codec import ENVELOPE, bound, recut, refusal, settings

LAYOUT = Layout((Entry("core", (2000,)),), (Entry("head", (7,)),))
PARTS = st.lists(st.sampled_from(["model", "core", "head"]), max_size=MAX_VECTORS)


def numbers(layout: Layout, seed: int = 0) -> Model:
    return Model(layout, np.random.default_rng(seed).standard_normal(layout.size, dtype=np.float32))


MODEL = numbers(LAYOUT)
PAIR = {"c": numbers(LAYOUT, 1), "h": numbers(LAYOUT.head, 2)}


@given(settings, PARTS, st.sampled_from(["model", "core"]), st.lists(st.integers(0, 1 << 20), max_size=6))
def test_all_vectors_come_out_wherever_the_stream_is_cut(
    how: WireSettings, parts: list[str], part: str, cuts: list[int]
) -> None:
    model = MODEL.of(part)  # type: ignore[arg-type]
    vectors = {f"v{i}": numbers(LAYOUT, i).of(p) for i, p in enumerate(parts)}  # type: ignore[arg-type]
    messages = list(encode(model, ENVELOPE, how, vectors=vectors))
    for way in (messages, recut(messages, cuts)):
        offer = decode(way, LAYOUT)
        assert list(offer.vectors) == list(vectors)
        for got, sent in zip([offer.model, *offer.vectors.values()], [model, *vectors.values()], strict=True):
            assert got.layout == sent.layout
            assert (np.abs(got.vector - sent.vector) <= bound(sent.vector, how)).all()


def changed(change: Callable[[pb.ModelChunk], None]) -> list[bytes]:
    (message,) = encode(MODEL, ENVELOPE, WireSettings(), vectors=PAIR)
    chunk = pb.ModelChunk.FromString(message)
    change(chunk)
    chunk.trailer.checksum = xxhash.xxh3_64_intdigest(chunk.data)
    return [chunk.SerializeToString()]


def shorten(chunk: pb.ModelChunk) -> None:
    chunk.data = chunk.data[:-4]
    chunk.header.encoded_size = 0  # unknown


BAD: dict[str, tuple[Callable[[pb.ModelChunk], None], Reason]] = {
    "too many": (lambda c: c.header.vectors.extend([c.header.vectors[0]] * MAX_VECTORS), Reason.TOO_LARGE),
    "a name twice": (lambda c: setattr(c.header.vectors[1], "name", "c"), Reason.GARBAGE),
    "no name": (lambda c: setattr(c.header.vectors[0], "name", ""), Reason.GARBAGE),
    "a long name": (lambda c: setattr(c.header.vectors[0], "name", "x" * 33), Reason.GARBAGE),
    "no part": (lambda c: setattr(c.header.vectors[0], "part", 9), Reason.GARBAGE),
    "predictions": (lambda c: setattr(c.header.vectors[0], "part", pb.PART_PREDICTIONS), Reason.LAYOUT),
    "another part": (lambda c: setattr(c.header.vectors[0], "part", pb.PART_CORE), Reason.LAYOUT),
    "another layout": (lambda c: setattr(c.header.vectors[0], "layout", "x"), Reason.LAYOUT),
    "more numbers": (lambda c: setattr(c.header.vectors[0], "numbers", 1 << 40), Reason.LAYOUT),
    "an old version": (lambda c: setattr(c.header, "version", 1), Reason.GARBAGE),
    "too short": (lambda c: shorten(c), Reason.TRUNCATED),
    "too long": (lambda c: setattr(c, "data", c.data + bytes(4)), Reason.TOO_LARGE),
    "announced too short": (lambda c: setattr(c.header, "encoded_size", 8), Reason.TRUNCATED),
    "not finite": (lambda c: setattr(c, "data", c.data[:-4] + np.float32("inf").tobytes()), Reason.NOT_FINITE),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_vectors_are_refused(name: str) -> None:
    change, reason = BAD[name]
    assert refusal(changed(change), LAYOUT) is reason


def test_a_message_without_vectors_is_what_it_was() -> None:
    (message,) = encode(MODEL, ENVELOPE, WireSettings())
    chunk = pb.ModelChunk.FromString(message)
    assert chunk.header.version == 1
    assert not chunk.header.vectors


def test_vectors_are_pushed_and_fetched_over_grpc_and_a_broken_push_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfl_node.wire.client.FIRST_DELAY", 0.05)
    layout = Layout((Entry("core", (200_000,)),), (Entry("head", (7,)),))
    model, more = numbers(layout), {"c": numbers(layout, 1)}

    async def main() -> None:
        host = FakeHost(layout)
        host.mailbox.vectors = {"c": "model"}
        async with Net() as net, serving(host, wire) as address, calling(wire) as client:
            proxy = await net.proxy("bob")
            proxy.leads_to(address)
            proxy.rate = 60e6
            cut = proxy.after(1_000_000, proxy.reset)  # in the second vector
            await client.send(BOB, proxy.address, model, round=1, vectors=more)
            assert cut.is_set()
            (offer,) = host.mailbox.collect([ANN], 1)
            assert (offer.model, offer.vectors) == (model, more)
            with pytest.raises(Refused, match="this policy expects c"):
                await client.send(BOB, proxy.address, model, round=2)
            host.current, host.vectors = model, more
            fetched = await client.fetch(BOB, proxy.address, "model", layout, vectors={"c": "model"})
            assert (fetched.model, fetched.vectors) == (model, more)
            with pytest.raises(Refused, match="this policy expects none"):
                await client.fetch(BOB, proxy.address, "model", layout)

    wire = WireSettings(chunk=1 << 16)
    asyncio.run(main())


def test_waiting_vectors_count_in_the_mailbox() -> None:
    host = FakeHost(LAYOUT)
    host.mailbox.vectors = {"c": "model"}
    one = Offer(PeerId("ann"), MODEL, 0, vectors={"c": PAIR["c"]})
    host.mailbox.admit(ANN, 0, "model", one.nbytes, {"c": "model"})
    host.mailbox.put(one)
    assert host.mailbox.size == one.nbytes == 2 * MODEL.nbytes
