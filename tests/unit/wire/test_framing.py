"""Our framing is protobuf's, byte for byte where it matters."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import encode
from pfl_node.wire.framing import ALIGNMENT, MAX_HEADER, SPARE, frame, parse

words = st.text(max_size=20)
headers = st.builds(
    pb.Header,
    version=st.integers(0, 9),
    sender=words,
    run=words,
    round=st.none() | st.integers(-(2**63), 2**63 - 1),
    tag=st.integers(0, 2**32 - 1),
    notes=st.dictionaries(words, st.floats(allow_nan=False), max_size=4),
    numbers=st.integers(0, 2**64 - 1),
)
checksums = st.none() | st.integers(0, 2**64 - 1)
payloads = st.binary(max_size=300) | st.sampled_from([127, 128, 16383, 16384, 1 << 20]).map(bytes)


def unpadded(chunk: pb.ModelChunk) -> pb.ModelChunk:
    if chunk.HasField("header"):
        chunk.header.ClearField("padding")
    return chunk


@given(st.none() | headers, payloads, checksums)
def test_protobuf_reads_what_we_write_and_we_read_what_protobuf_writes(
    header: pb.Header | None, data: bytes, checksum: int | None
) -> None:
    trailer = None if checksum is None else pb.Trailer(checksum=checksum)
    theirs = pb.ModelChunk(header=header, data=data, trailer=trailer)
    ours = frame(header, memoryview(data), checksum)
    assert unpadded(pb.ModelChunk.FromString(ours)) == theirs
    for message in (ours, theirs.SerializeToString()):
        chunk = parse(message)
        if chunk.header is not None:
            chunk.header.ClearField("padding")
        assert (chunk.header, bytes(chunk.data), chunk.trailer) == (header, data, trailer)


@given(headers, payloads.filter(len), checksums)
def test_the_data_behind_a_header_is_aligned(header: pb.Header, data: bytes, checksum: int | None) -> None:
    message = frame(header, memoryview(data), checksum)
    room = len(message) - len(data) - (0 if checksum is None else 11)
    assert message[room : room + len(data)] == data
    assert room % ALIGNMENT == 0


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b"\x0a", b"\x12", b"\x1a", b"\x00", b"\x02", b"\xff"])).map(b"".join)
)
def test_we_understand_exactly_what_protobuf_understands(noise: bytes) -> None:
    try:
        theirs = pb.ModelChunk.FromString(noise)
    except DecodeError:
        with pytest.raises(Refused) as caught:
            parse(noise)
        assert caught.value.reason is Reason.GARBAGE
        return
    ours = parse(noise)
    assert bytes(ours.data) == theirs.data
    assert (ours.header or pb.Header()) == theirs.header
    assert (ours.trailer or pb.Trailer()) == theirs.trailer


def test_fields_of_a_later_version_are_skipped() -> None:
    later = b"\x7a\x03new" + frame(None, memoryview(b"data"), None)
    assert bytes(parse(later).data) == b"data"


def test_the_largest_header_is_the_same_on_both_paths() -> None:
    header = pb.Header(run="x" * MAX_HEADER)
    ours = frame(header, memoryview(b""), None)
    for message in (ours, ours + b"\x7a\x00"):
        with pytest.raises(Refused) as caught:
            parse(message)
        assert caught.value.reason is Reason.TOO_LARGE


VERSION_1 = """
0a 5c  08 01  12 03 61 6e 6e  1a 03 72 75 6e  20 06  28 02  30 28
       3a 10 0a 05 73 68 61 72 65 11 00 00 00 00 00 00 d0 3f  40 01
       52 20 37 39 31 35 64 31 39 61 36 37 66 39 31 33 31 32 31 36 34 35 38 61 66 32 65 66 37 61 32 31 61 30
       58 01  60 03  68 0c  72 0c 00 00 00 00 00 00 00 00 00 00 00 00
12 0c  00 00 80 3f 00 00 00 c0 00 00 00 3f
1a 09  09 a4 09 f7 e5 f6 89 62 a2
"""  # a header, the data, a trailer


def test_a_model_has_the_bytes_that_nodes_of_version_1_know() -> None:
    layout = Layout((Entry("core", (2,)),), (Entry("head", (1,)),))
    envelope = Envelope(PeerId("ann"), "run", round=3, tag=2, samples=40, notes={"share": 0.25})
    (message,) = encode(Model(layout, np.array([1, -2, 0.5], np.float32)), envelope, WireSettings())
    assert message == bytes.fromhex(VERSION_1)


def test_a_small_model_does_not_keep_a_large_message_in_memory() -> None:
    data, waste = memoryview(bytes(64)), pb.Header(padding=bytes(SPARE)).SerializeToString()
    in_the_header = pb.ModelChunk(header=pb.Header.FromString(waste), data=data.tobytes()).SerializeToString()
    in_the_trailer = pb.ModelChunk(data=data.tobytes(), trailer=pb.Trailer.FromString(waste)).SerializeToString()
    for message in (in_the_header, in_the_trailer):
        assert len(message) > SPARE
        assert parse(message).data == data
        assert parse(message).data.obj is not message
    slim = frame(pb.Header(sender="a"), data, 7)
    assert parse(slim).data.obj is slim
