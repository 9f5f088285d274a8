"""Models with buffers over the codec: numbers of different sizes do not share a scale of int8."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason
from pfl_node.model import Entry, Layout, Model, PartialModel
from pfl_node.protocol.compression import Compressor
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import decode, encode
from pfl_node.wire.framing import parse
from pfl_node.wire.payload import Payload
from tests.unit.wire.test_codec import ENVELOPE, recut, refusal, settings

INT8 = WireSettings(encoding="int8")
SIZES = {"weight": 0.05, "bias": 0.02, "mean": 3.0, "var": 100.0, "steps": 2000.0}  # of the numbers of a tensor


def normalised(width: int) -> Layout:
    """Of a network whose core and head each end with a batch normalisation, the counters included."""

    def part(name: str, rows: int) -> tuple[Entry, ...]:
        trained = Entry(f"{name}.weight", (rows, width)), Entry(f"{name}.bias", (width,))
        buffers = [Entry(f"{name}.{key}", (width,), False) for key in ("mean", "var")]
        return (*trained, *buffers, Entry(f"{name}.steps", (), False))

    return Layout(part("core", width), part("head", 3))


def filled(layout: Layout, seed: int = 0) -> Model:
    chance, vector = np.random.default_rng(seed), np.empty(layout.size, np.float32)
    for entry, span in layout.spans():
        vector[span] = SIZES[entry.name.rpartition(".")[2]] * chance.uniform(0.5, 1, entry.size)
    return Model(layout, vector)


def top(model: Model) -> Model:
    compressor = Compressor("top:0.3", PeerId("ann"))
    compressor.begin(filled(model.layout, 1))
    return compressor.compressed(model, PeerId("bob"), 0)


def fragments(model: Model) -> Model:
    return Compressor("fragments:16/5", PeerId("ann")).compressed(model, PeerId("bob"), 0)


def scattered(model: Model) -> Model:
    return model.sparse(np.random.default_rng(2).permutation(model.layout.size)[: model.layout.size // 50])


@pytest.mark.parametrize("part", [lambda m: m, top, fragments, scattered, lambda m: m.core, lambda m: m.head])
@pytest.mark.parametrize("zstd", [0, 1])
def test_int8_keeps_each_tensor_within_a_percent(part: Callable[[Model], Model], zstd: int) -> None:
    sent = part(filled(normalised(64)))
    how = INT8.model_copy(update={"zstd": zstd})
    got = decode(encode(sent, ENVELOPE, how), sent.layout).model
    places = got.indices if isinstance(got, PartialModel) else np.arange(sent.layout.size)
    for entry, span in sent.layout.spans():
        here = (places >= span.start) & (places < span.stop)
        error = np.linalg.norm(got.numbers[here] - sent.numbers[here])
        largest = np.linalg.norm(sent.numbers[here])
        if entry.name.endswith("bias"):  # shares the scale of a weight that is up to 5 times as large
            assert error <= 0.03 * largest, entry.name
        else:
            assert error <= 0.01 * largest, entry.name


@given(
    st.sampled_from([1, 5, 40, 200]), settings, st.lists(st.integers(0, 1 << 20), max_size=6), st.integers(0, 3)
)
def test_sizes_are_exact_and_it_does_not_matter_where_a_stream_is_cut(
    width: int, how: WireSettings, cuts: list[int], which: int
) -> None:
    model = filled(normalised(width))
    sent = (model, top(model), fragments(model), scattered(model))[which]
    vectors = {"c": model, "h": model.head}
    messages = list(encode(sent, ENVELOPE, how, vectors=vectors))
    promised, nbytes = Payload(sent, vectors).size(how), sum(parse(m).data.nbytes for m in messages)
    if not how.zstd:
        assert pb.ModelChunk.FromString(messages[0]).header.encoded_size == promised == nbytes
        assert max(parse(m).data.nbytes for m in messages) <= how.chunk or nbytes <= 1 << 20
    one, other = (decode(way, model.layout) for way in (messages, recut(messages, cuts)))
    assert one.model == other.model
    assert one.vectors == other.vectors
    assert np.allclose(one.vectors["c"].vector, model.vector, rtol=0.1, atol=1e-2)


def test_a_large_model_with_many_buffers_is_cut_into_full_messages() -> None:
    entries = [Entry(f"{n}", (5000,) if n % 2 else (10,), bool(n % 2)) for n in range(600)]
    layout = Layout(tuple(entries), ())
    model = Model(layout, np.random.default_rng(0).standard_normal(layout.size).astype(np.float32))
    messages = list(encode(model, ENVELOPE, INT8))
    assert len(messages) == -(-Payload(model).size(INT8) // INT8.chunk)
    got = decode(messages, layout).model.vector
    assert np.abs(got - model.vector).max() < 0.03


@pytest.mark.parametrize("zstd", [0, 1])
def test_more_or_fewer_bytes_than_the_stretches_have_are_refused(zstd: int) -> None:
    model = filled(normalised(40))
    how = INT8.model_copy(update={"zstd": zstd})
    for sent in (model, top(model), fragments(model)):
        for wrong in (-1, 1):
            chunk = pb.ModelChunk.FromString(next(encode(sent, ENVELOPE, INT8)))
            data = chunk.data[:-1] if wrong < 0 else chunk.data + b"x"
            chunk.header.encoded_size = len(data)
            chunk.data = data
            said = refusal([chunk.SerializeToString()], model.layout)
            assert said in (Reason.TRUNCATED, Reason.TOO_LARGE, Reason.CHECKSUM)
        for wrong_size in (1, 1 << 40):
            chunk = pb.ModelChunk.FromString(next(encode(sent, ENVELOPE, how)))
            chunk.header.encoded_size = wrong_size
            assert refusal([chunk.SerializeToString()], model.layout) in (Reason.TRUNCATED, Reason.TOO_LARGE)


def test_an_older_node_that_shares_scales_between_tensors_is_refused_without_a_penalty() -> None:
    model = filled(normalised(5))
    chunk = pb.ModelChunk.FromString(next(encode(model, ENVELOPE, INT8)))
    assert chunk.header.version == 3
    chunk.header.version = 1
    assert refusal([chunk.SerializeToString()], model.layout) is Reason.VERSION
    fp16 = pb.ModelChunk.FromString(next(encode(model, ENVELOPE, WireSettings(encoding="fp16"))))
    assert fp16.header.version == 1


def test_models_without_buffers_are_encoded_as_before() -> None:
    """The digest is that of the version before buffers began blocks of their own."""
    chance, seen = np.random.default_rng(0), hashlib.sha256()
    layout = Layout((Entry("a", (900,)), Entry("b", (21000,))), (Entry("h", (513,)),))
    thousandths = chance.integers(-999, 999, layout.size).astype(np.float32)
    model = Model(layout, thousandths / np.float32(1000))
    places = chance.permutation(layout.size)
    for sent in (
        model,
        model.sparse(places[:4000]),
        model.sparse(places[:90]),
        model.fragment(1, 3, of=8),
        model.head,
    ):
        for encoding in ("fp32", "fp16", "int8"):
            for chunk in (4096, 1 << 20):
                how = WireSettings(encoding=encoding, chunk=chunk)
                for message in encode(sent, ENVELOPE, how, vectors={"c": model}):
                    seen.update(message)
    assert seen.hexdigest()[:16] == "b41830e9d9c9935e"
