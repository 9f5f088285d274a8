"""Models to bytes and back: what comes out, what it may cost, and every way it can be refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.model import Entry, Layout, Model, Vector
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import MAX_NOTES, decode, encode
from pfl_node.wire.framing import MAX_HEADER, frame

ENVELOPE = Envelope(PeerId("ann"), "run", round=3, tag=2, samples=40, notes={"share": 0.25})
SETTINGS = WireSettings()

sizes = st.integers(0, 40) | st.sampled_from([1023, 1024, 1025, 2048, 5000, 16383, 16384, 16385, 40000])
settings = st.builds(
    WireSettings,
    encoding=st.sampled_from(["fp32", "fp16", "int8"]),
    zstd=st.sampled_from([0, 1, 3]),
    chunk=st.just(4096),
)


def layout_of(core: int, head: int = 0) -> Layout:
    return Layout((Entry("core", (core,)),), (Entry("head", (head,)),))


def model_of(n: int, seed: int = 0, scale: float = 1.0) -> Model:
    vector = np.random.default_rng(seed).standard_normal(n, dtype=np.float32) * np.float32(scale)
    return Model(layout_of(n), vector)


def bound(vector: Vector, how: WireSettings) -> Vector:
    """The documented error of an encoding, for each number."""
    if how.encoding == "fp32":
        return np.zeros_like(vector)
    if how.encoding == "fp16":
        return np.maximum(np.abs(vector) * np.float32(2**-11), np.float32(2**-25))
    blocks = np.split(vector, range(1024, len(vector), 1024))
    peaks = [np.full(len(b), np.abs(b).max(initial=0), np.float32) for b in blocks]
    return np.asarray(np.concatenate(peaks) / np.float32(254) * np.float32(1 + 1e-5))


def recut(messages: list[bytes], cuts: list[int]) -> list[bytes]:
    """The same stream as another client would cut it: header alone, payload cut anywhere, trailer alone."""
    chunks = [pb.ModelChunk.FromString(m) for m in messages]
    payload = b"".join(c.data for c in chunks)
    edges = sorted({0, len(payload), *(c % (len(payload) + 1) for c in cuts)})
    middle = [pb.ModelChunk(data=payload[a:b]) for a, b in pairwise(edges)]
    whole = [pb.ModelChunk(header=chunks[0].header), *middle, pb.ModelChunk(trailer=chunks[-1].trailer)]
    return [c.SerializeToString() for c in whole]


@given(sizes, settings, st.integers(0, 5), st.sampled_from([1e-3, 1.0, 1e3]))
def test_what_was_sent_comes_out_within_the_documented_error(
    n: int, how: WireSettings, seed: int, scale: float
) -> None:
    model = model_of(n, seed, scale)
    offer = decode(encode(model, ENVELOPE, how), model.layout)
    assert (offer.sender, offer.round, offer.tag, offer.samples, offer.notes) == ("ann", 3, 2, 40, {"share": 0.25})
    assert offer.model.layout == model.layout
    assert (np.abs(offer.model.vector - model.vector) <= bound(model.vector, how)).all()


@given(sizes, settings, st.lists(st.integers(0, 1 << 20), max_size=8))
def test_it_does_not_matter_where_a_stream_is_cut(n: int, how: WireSettings, cuts: list[int]) -> None:
    model = model_of(n)
    messages = list(encode(model, ENVELOPE, how))
    assert decode(recut(messages, cuts), model.layout).model == decode(messages, model.layout).model


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50), settings)
def test_a_finite_model_stays_finite_in_every_encoding(values: list[float], how: WireSettings) -> None:
    model = Model(layout_of(len(values)), np.array(values, np.float32))
    assert decode(encode(model, ENVELOPE, how), model.layout).model.is_finite()


@given(settings, st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 19_999))
def test_nan_and_infinity_are_refused_wherever_they_are(how: WireSettings, bad: float, at: int) -> None:
    vector = np.ones(20_000, np.float32)
    vector[at] = bad
    model = Model(layout_of(20_000), vector)
    assert refusal(encode(model, ENVELOPE, how), model.layout) is Reason.NOT_FINITE


def test_a_large_model_is_cut_and_a_small_one_is_a_single_message() -> None:
    assert len(list(encode(model_of(250_000), ENVELOPE, SETTINGS))) == 1
    large = list(encode(model_of(600_000), ENVELOPE, SETTINGS))
    assert len(large) == 3
    assert max(map(len, large)) < SETTINGS.chunk + 200


def test_a_model_in_one_message_is_used_where_it_lies() -> None:
    model = model_of(1000)
    (message,) = encode(model, ENVELOPE, SETTINGS)
    for way, shared in ((message, True), (b"\x7a\x01x" + message, False)):
        vector = decode([way], model.layout).model.vector
        assert vector.flags.aligned
        assert np.shares_memory(vector, np.frombuffer(way, np.uint8)) is shared


def test_a_core_and_a_head_travel_alone_and_fit_together_again() -> None:
    layout = layout_of(30, 5)
    model = Model(layout, np.arange(35, dtype=np.float32))
    core = decode(encode(model.core, ENVELOPE, SETTINGS), layout).model
    head = decode(encode(model.head, ENVELOPE, SETTINGS), layout).model
    assert core + head == model


def test_no_round_is_not_round_zero() -> None:
    model = model_of(3)
    for round in (None, 0, -1):
        offer = decode(encode(model, replace(ENVELOPE, round=round), SETTINGS), model.layout)
        assert offer.round == round


# -- what is refused -------------------------------------------------------------------------------------------


def refusal(messages: Iterator[bytes] | list[bytes], layout: Layout) -> Reason:
    with pytest.raises(Refused) as caught:
        decode(messages, layout)
    return caught.value.reason


def chunk_of(model: Model, how: WireSettings = SETTINGS) -> pb.ModelChunk:
    (message,) = encode(model, ENVELOPE, how)
    return pb.ModelChunk.FromString(message)


def altered(model: Model, header: dict[str, object]) -> list[bytes]:
    chunk = chunk_of(model)
    for name, value in header.items():
        setattr(chunk.header, name, value)
    return [chunk.SerializeToString()]


MODEL = model_of(100)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"version": 0}, Reason.GARBAGE),
        ({"version": 4}, Reason.VERSION),
        ({"encoding": 0}, Reason.GARBAGE),
        ({"encoding": 77}, Reason.GARBAGE),
        ({"part": 0}, Reason.GARBAGE),
        ({"layout": "of another task"}, Reason.LAYOUT),
        ({"part": pb.PART_CORE}, Reason.LAYOUT),
        ({"numbers": 99}, Reason.LAYOUT),
        ({"numbers": 1 << 60}, Reason.TOO_LARGE),
        ({"encoded_size": 1 << 60}, Reason.TOO_LARGE),
        ({"encoded_size": 399}, Reason.TRUNCATED),
    ],
)
def test_a_header_that_breaks_a_rule(header: dict[str, object], reason: Reason) -> None:
    assert refusal(altered(MODEL, header), MODEL.layout) is reason


@pytest.mark.parametrize("size", [99, 101, 1000])
def test_a_model_of_another_task_has_another_layout_also_if_it_is_larger(size: int) -> None:
    """`too_large` is a penalty, and would not show in the line that says how many messages did not fit."""
    assert refusal(encode(model_of(size), ENVELOPE, SETTINGS), MODEL.layout) is Reason.LAYOUT


def test_notes_are_few_and_finite() -> None:
    for notes, reason in (
        ({str(i): 0.0 for i in range(MAX_NOTES + 1)}, Reason.TOO_LARGE),
        ({"loss": float("nan")}, Reason.NOT_FINITE),
    ):
        assert refusal(encode(MODEL, replace(ENVELOPE, notes=notes), SETTINGS), MODEL.layout) is reason


def test_a_huge_header_is_refused_before_it_is_parsed() -> None:
    header = pb.Header(version=1, run="x" * MAX_HEADER)
    assert refusal([frame(header, memoryview(b""), None)], MODEL.layout) is Reason.TOO_LARGE


def test_no_memory_is_taken_for_what_will_be_refused() -> None:
    layout = layout_of(10_000_000)
    vector = np.zeros(10_000_000, np.float32)
    header = next(encode(Model(layout, vector), ENVELOPE, SETTINGS))
    tracemalloc.start()
    try:
        for name, value in (("layout", "other"), ("numbers", 1 << 40), ("version", 9), ("encoded_size", 1 << 50)):
            chunk = pb.ModelChunk.FromString(header)
            chunk.ClearField("data")
            setattr(chunk.header, name, value)
            refusal([chunk.SerializeToString()], layout)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "how", [WireSettings(encoding=e, zstd=z) for e in ("fp32", "fp16", "int8") for z in (0, 3)]
)
def test_a_payload_that_is_not_what_was_promised(how: WireSettings) -> None:
    chunk = chunk_of(MODEL, how)

    def with_data(data: bytes) -> list[bytes]:
        changed = pb.ModelChunk(header=chunk.header, data=data, trailer=chunk.trailer)
        return [changed.SerializeToString()]

    assert refusal(with_data(chunk.data[:-8]), MODEL.layout) is Reason.TRUNCATED
    if not how.zstd:
        assert refusal(with_data(chunk.data + b"more"), MODEL.layout) is Reason.TOO_LARGE
        flipped = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
        assert refusal(with_data(flipped), MODEL.layout) is Reason.CHECKSUM
    else:
        assert refusal(with_data(b"not zstd at all"), MODEL.layout) is Reason.GARBAGE
    chunk.trailer.checksum ^= 1
    assert refusal([chunk.SerializeToString()], MODEL.layout) is Reason.CHECKSUM


def test_a_stream_keeps_its_order() -> None:
    chunk = chunk_of(MODEL)
    whole = chunk.SerializeToString()
    no_trailer = pb.ModelChunk(header=chunk.header, data=chunk.data).SerializeToString()
    assert refusal([], MODEL.layout) is Reason.TRUNCATED
    assert refusal([no_trailer], MODEL.layout) is Reason.TRUNCATED
    assert refusal([pb.ModelChunk(data=b"1234").SerializeToString()], MODEL.layout) is Reason.GARBAGE
    assert refusal([no_trailer, no_trailer], MODEL.layout) is Reason.GARBAGE
    assert refusal([whole, b""], MODEL.layout) is Reason.GARBAGE


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused_and_nothing_else_happens(noise: bytes) -> None:
    assert refusal([noise], MODEL.layout) in {Reason.GARBAGE, Reason.TOO_LARGE}


def zstd_message(model: Model, payload: bytes) -> bytes:
    header = chunk_of(MODEL).header
    header.layout, header.numbers, header.zstd, header.encoded_size = (
        model.layout.digest,
        model.layout.size,
        True,
        0,
    )
    return pb.ModelChunk(header=header, data=payload).SerializeToString()


def test_a_bomb_is_refused_in_bounded_memory() -> None:
    params = zstandard.ZstdCompressionParameters.from_level(19, window_log=20)
    bomb = zstandard.ZstdCompressor(compression_params=params).compress(bytes(256 << 20))
    model = model_of(30_000)
    message = zstd_message(model, bomb)
    assert len(message) < 20_000
    tracemalloc.start()
    try:
        assert refusal([message], model.layout) is Reason.BOMB
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # the vector and one step of zstd
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_that_wants_a_large_window_is_refused() -> None:
    params = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    bomb = packer.compress(bytes(1 << 20)) + packer.flush()
    assert refusal([zstd_message(MODEL, bomb)], MODEL.layout) is Reason.BOMB
