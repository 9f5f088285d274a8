"""Partial models over the codec: what comes out, which form is chosen, and every way to get the index wrong."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.model import Model, PartialModel
from pfl_node.settings import WireSettings
from pfl_node.types import Offer
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.async_codec import LARGE
from pfl_node.wire.codec import Decoder, decode, encode, read_header
from pfl_node.wire.coordinates import pack
from pfl_node.wire.framing import frame
from pfl_node.wire.payload import Payload
from tests.unit.wire.small_host import ANN, BOB, FakeHost, calling, serving
from tests.unit.wire.test_codec import ENVELOPE, SETTINGS, bound, layout_of, model_of, recut, refusal, settings

N = 5000


@st.composite
def partials(draw: st.DrawFn) -> PartialModel:
    n = draw(st.sampled_from([1, 7, 8, 9, 300, N, 40_000]))
    model = Model(layout_of(n - n // 3, n // 3), model_of(n, draw(st.integers(0, 3))).vector)
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["none", "all", "some", "few", "slices"]))
    share = {"none": 0.0, "all": 1.0, "some": 0.2, "few": 0.003, "slices": 0.0}[kind]
    if kind == "slices":
        return model.fragment(*chance.integers(0, 16, 4).tolist(), of=16)
    return model.sparse(np.flatnonzero(chance.random(n) < share), same=bool(chance.integers(2)))


@given(partials(), settings, st.lists(st.integers(0, 1 << 20), max_size=6))
def test_a_partial_model_comes_out_wherever_the_stream_is_cut(
    sent: PartialModel, how: WireSettings, cuts: list[int]
) -> None:
    more = {"c": Model(sent.layout.head, np.ones(sent.layout.head.size, np.float32))}
    messages = list(encode(sent, ENVELOPE, how, vectors=more))
    for way in (messages, recut(messages, cuts)):
        got = decode(way, sent.layout).model
        assert isinstance(got, PartialModel)
        assert (got.same, got.indices.tolist()) == (sent.same, sent.indices.tolist())
        assert (np.abs(got.values - sent.values) <= bound(sent.values, how)).all()


@given(partials())
def test_parts_of_a_partial_model_fit_together_and_complete_the_same(sent: PartialModel) -> None:
    base = Model(sent.layout, np.full(sent.layout.size, 7, np.float32))
    assert sent.core + sent.head == sent
    assert sent.core.over(base.core) + sent.head.over(base.head) == sent.over(base)
    assert sent.over(base).vector[sent.indices].tolist() == sent.values.tolist()


def test_a_partial_model_costs_its_numbers_and_the_smaller_index() -> None:
    model, how = model_of(40_000), WireSettings(encoding="int8")
    chance = np.random.default_rng(0).permutation(40_000)
    fifth, few = (Payload(model.sparse(chance[:n])) for n in (8000, 400))
    assert fifth.size(how) == 40_000 // 8 + 8000 + 4 * 8  # a bitmap, numbers, scales of blocks
    assert few.size(how) < 400 + 400 + 160 + 4  # deltas: a byte each, and some for long gaps
    assert Payload(model.fragment(3, 4, 9, of=16)).size(how) == 7500 + 4 * 8  # runs, in the header


@pytest.mark.parametrize("n", [N, 400_000, 3 * LARGE])
def test_a_push_and_a_fetch_pack_the_index_once_and_a_large_one_in_a_thread(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one message and in several."""
    threads: list[threading.Thread] = []

    def watched(*given: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        return pack(*given, **more)

    monkeypatch.setattr("pfl_node.wire.payload.pack", watched)
    sent, wire = model_of(n).sparse(range(0, n, 3)), WireSettings(chunk=1 << 16)

    async def main() -> None:
        host = FakeHost(sent.layout)
        host.current = sent
        async with serving(host, wire) as address, calling(wire) as client:
            await client.send(BOB, address, sent, round=1)
            (offer,) = host.mailbox.collect([ANN], 1)
            assert offer.model == sent
            assert (await client.fetch(BOB, address, "model", sent.layout)).model == sent

    asyncio.run(main())
    assert len(threads) == 2
    assert {thread is threading.main_thread() for thread in threads} == {n < 3 * LARGE}


def test_a_few_numbers_do_not_keep_a_large_index_in_memory() -> None:
    """The mailbox counts the numbers and their places. A sender may use a bitmap for a single number."""
    layout = layout_of(n := 4_000_000)
    bits = np.zeros(n // 8, np.uint8)
    bits[-1] = 1
    places = pb.Coordinates(count=1, index_size=bits.size, bitmap=True)
    chunk = pb.ModelChunk.FromString(next(encode(model_of(n).sparse([n - 8]), ENVELOPE, SETTINGS)))
    chunk.header.present.CopyFrom(places)
    chunk.header.encoded_size = bits.size + 4
    chunk.header.ClearField("padding")
    data = bits.tobytes() + chunk.data
    sent = frame(chunk.header, memoryview(data), xxhash.xxh3_64_intdigest(data))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    offers = [decode([bytes(bytearray(sent))], layout) for _ in range(4)]
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert [offer.model.numbers.size for offer in offers] == [1] * 4
    assert kept < bits.size


@given(settings, st.sampled_from([np.nan, np.inf]))
def test_a_number_that_is_not_finite_is_refused(how: WireSettings, bad: float) -> None:
    vector = np.ones(N, np.float32)
    vector[77] = bad
    sent = Model(layout_of(N), vector).sparse(range(0, N, 7))
    assert refusal(encode(sent, ENVELOPE, how), sent.layout) is Reason.NOT_FINITE


MODEL = model_of(N)
FORMS = {
    "bitmap": MODEL.sparse(np.arange(0, N, 2)),
    "deltas": MODEL.sparse(np.arange(0, N, 50)),
    "runs": MODEL.fragment(1, 5, of=8),
}
Change = Callable[[pb.ModelChunk], None]


def altered(form: str, change: Change) -> list[bytes]:
    (message,) = encode(FORMS[form], ENVELOPE, SETTINGS)
    chunk = pb.ModelChunk.FromString(message)
    change(chunk)
    chunk.header.encoded_size = 0
    chunk.trailer.checksum = xxhash.xxh3_64_intdigest(chunk.data)
    return [chunk.SerializeToString()]


def byte(at: int, value: int) -> Change:
    def change(chunk: pb.ModelChunk) -> None:
        data = bytearray(chunk.data)
        data[at] = value
        chunk.data = bytes(data)

    return change


def present(**fields: int | bool) -> Change:
    def change(chunk: pb.ModelChunk) -> None:
        for name, value in fields.items():
            setattr(chunk.header.present, name, value)

    return change


def runs(*numbers: int) -> Change:
    return lambda chunk: chunk.header.present.runs.__setitem__(slice(None), numbers)


BAD: list[tuple[str, Change, Reason]] = [
    ("bitmap", byte(0, 0xFF), Reason.GARBAGE),  # more bits than numbers
    ("bitmap", byte(0, 0), Reason.GARBAGE),
    ("bitmap", present(count=N + 1), Reason.TOO_LARGE),
    ("bitmap", present(count=1 << 60), Reason.TOO_LARGE),
    ("bitmap", present(index_size=626), Reason.GARBAGE),
    ("bitmap", present(index_size=1 << 50), Reason.GARBAGE),
    ("bitmap", present(index_size=0), Reason.GARBAGE),
    ("deltas", present(bitmap=True), Reason.GARBAGE),
    ("deltas", present(index_size=99), Reason.GARBAGE),
    ("deltas", byte(5, 255), Reason.GARBAGE),  # continues: one number fewer
    ("deltas", byte(99, 255), Reason.GARBAGE),  # the last one
    ("deltas", byte(99, 200), Reason.GARBAGE),  # beyond the layout
    ("runs", present(count=7), Reason.GARBAGE),
    ("runs", runs(0), Reason.GARBAGE),
    ("runs", runs(0, 600, 500, 650), Reason.GARBAGE),  # overlap
    ("runs", runs(3000, 625, 0, 625), Reason.GARBAGE),  # not ascending
    ("runs", runs(N - 1, 1250), Reason.GARBAGE),  # beyond the layout
    ("runs", runs(1 << 63, 1250), Reason.GARBAGE),
    ("runs", runs(0, 0, 0, 1250), Reason.GARBAGE),
    ("runs", runs(*range(200)), Reason.TOO_LARGE),
    ("runs", lambda c: setattr(c.header, "version", 1), Reason.GARBAGE),
    ("runs", lambda c: setattr(c, "data", c.data[:-4]), Reason.TRUNCATED),
    ("runs", lambda c: setattr(c, "data", c.data + bytes(4)), Reason.TOO_LARGE),
    ("bitmap", lambda c: setattr(c, "data", c.data[:600]), Reason.TRUNCATED),
]


@pytest.mark.parametrize(("form", "change", "reason"), BAD)
def test_a_wrong_index_is_refused(form: str, change: Change, reason: Reason) -> None:
    assert decode(altered(form, lambda _: None), MODEL.layout).model == FORMS[form]
    assert refusal(altered(form, change), MODEL.layout) is reason


@given(
    partials(), settings, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_whatever_bytes_change_a_message_is_refused_or_sound(
    sent: PartialModel, how: WireSettings, flips: list[tuple[int, int]]
) -> None:
    more = {"c": Model(sent.layout.head, np.ones(sent.layout.head.size, np.float32))}
    messages = [bytearray(m) for m in encode(sent, ENVELOPE, how, vectors=more)]
    for at, value in flips:
        message = messages[at % len(messages)]
        message[at % min(len(message), 400)] = value  # mostly the header and the index
    try:
        offer = decode([bytes(m) for m in messages], sent.layout)
    except Refused:
        return
    numbers = offer.model.numbers
    assert np.isfinite(numbers).all()
    if isinstance(offer.model, PartialModel):
        places = offer.model.indices
        assert places.size == numbers.size <= sent.layout.size
        assert (np.diff(places) > 0).all()
        assert not places.size or 0 <= places[0] <= places[-1] < sent.layout.size


def test_unused_bits_of_a_bitmap_are_zero() -> None:
    model = model_of(1001)
    (message,) = encode(model.sparse(np.arange(0, 1001, 2)), ENVELOPE, SETTINGS)
    chunk = pb.ModelChunk.FromString(message)
    data = bytearray(chunk.data)
    data[125], data[0] = data[125] | 0x80, data[0] & ~1  # the same number of bits
    chunk.data = bytes(data)
    chunk.trailer.checksum = xxhash.xxh3_64_intdigest(chunk.data)
    assert refusal([chunk.SerializeToString()], model.layout) is Reason.GARBAGE


def test_a_compressed_bomb_behind_an_index_is_refused() -> None:
    how, zeros = WireSettings(zstd=3), Model(layout_of(400_000), np.zeros(400_000, np.float32))
    messages = list(encode(zeros.sparse(range(0, 400_000, 2)), ENVELOPE, how))
    chunk = pb.ModelChunk.FromString(messages[0])
    chunk.header.present.count = 1000  # a deltas index would be larger than announced
    chunk.header.present.bitmap, chunk.header.present.index_size = False, 1000
    assert refusal([chunk.SerializeToString()], zeros.layout) in (Reason.BOMB, Reason.GARBAGE)


def decoder_of(sent: PartialModel) -> Decoder:
    """After the header, before any data."""
    return Decoder(*read_header(next(encode(sent, ENVELOPE, WireSettings(chunk=1 << 16)))), sent.layout)


def test_a_header_with_runs_alone_allocates_nothing() -> None:
    sent = model_of(1_000_000).fragment(0, 1, 2, of=4)
    message = next(encode(sent, ENVELOPE, WireSettings(chunk=1 << 16)))
    chunk, envelope = read_header(message)
    tracemalloc.start()
    Decoder(chunk, envelope, sent.layout)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_large_index_is_unpacked_in_a_thread() -> None:
    assert decoder_of(model_of(2_000_000).sparse(np.arange(0, 2_000_000, 5))).heavy
    assert not decoder_of(MODEL.sparse(np.arange(0, N, 2))).heavy


def test_an_offer_counts_what_a_partial_model_holds() -> None:
    assert Offer(ENVELOPE.sender, FORMS["deltas"]).nbytes == 8 * 100
