"""Predictions that a node refuses, over real gRPC: each with a precise status, counted, and nothing of it kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.predictions import layout_for
from pfl_node.types import Envelope, Offer, Part
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.statuses import REASON_KEY
from tests.unit.wire.small_host import (
    ANN,
    BOB,
    RUN,
    FakeHost,
    calling,
    chunks_of,
    layout_of,
    predictions_of,
    raw_channel,
    serving,
)

Code = grpc.StatusCode
LAYOUT = layout_of(1000)
FEW, MANY = layout_for(50, 10, "samples"), layout_for(60_000, 10, "samples")
OTHERS = layout_for(50, 10, "other samples")
MORE = layout_for(51, 10, "samples and one more")
SAID = predictions_of(FEW)

Way = Callable[[str], Awaitable[None]]  # what is done at an address


def refusal(call: Way, host: FakeHost) -> Refused:
    """What bob answers; he must have counted it, kept nothing of it, and be as well as before."""

    async def main() -> Refused:
        async with serving(host) as address:
            with pytest.raises(Refused) as caught:
                await call(address)
            assert [outcome for (_, outcome), n in host.counts.items() if n] == [str(caught.value.reason)]
            assert host.mailbox.held == 0
            async with calling() as client:
                await client.send(BOB, address, host.current, round=0)
            assert host.mailbox.collect([ANN], 0) == (Offer(ANN, host.current, round=0),)
        return caught.value

    return asyncio.run(main())


def pushing(said: Model) -> Way:
    async def call(address: str) -> None:
        async with calling() as client:
            await client.send(BOB, address, said)

    return call


def pulling(layout: Layout, run: str = RUN) -> Way:
    async def call(address: str) -> None:
        async with calling(run=run) as client:
            await client.fetch(BOB, address, "predictions", layout)

    return call


@pytest.mark.parametrize("way", [pushing, pulling])
@pytest.mark.parametrize("layout", [OTHERS, MORE, layout_for(50, 9, "samples"), MANY])
def test_other_auxiliary_samples_do_not_fit_and_the_peer_is_told_why(way: Any, layout: Layout) -> None:
    refused = refusal(way(predictions_of(layout) if way is pushing else layout), FakeHost(LAYOUT, FEW))
    assert (refused.reason, refused.peer) == (Reason.LAYOUT, BOB)
    assert "other auxiliary samples" in refused.text
    assert layout.digest[:8] in refused.text
    assert FEW.digest[:8] in refused.text


@pytest.mark.parametrize("way", [pushing(SAID), pulling(FEW)])
def test_a_node_without_auxiliary_data_says_so(way: Way) -> None:
    host = FakeHost(LAYOUT)
    refused = refusal(way, host)
    assert (refused.reason, refused.text) == (Reason.LAYOUT, "this node has no auxiliary data")


def test_a_node_that_does_not_serve_them_or_has_none_yet_says_so() -> None:
    shy, early = FakeHost(LAYOUT, FEW), FakeHost(LAYOUT, FEW)
    shy.closed, early.said = {"GetPredictions"}, None
    assert refusal(pulling(FEW), shy).reason is Reason.NOT_SERVED
    assert refusal(pulling(FEW), early).reason is Reason.NOT_READY
    assert refusal(pulling(FEW, run="other"), FakeHost(LAYOUT, FEW)).reason is Reason.UNKNOWN_RUN


def test_a_policy_that_takes_no_predictions_gets_none() -> None:
    host = FakeHost(LAYOUT, FEW)
    host.mailbox.takes = ("model",)
    assert refusal(pushing(SAID), host).reason is Reason.LAYOUT
    assert host.admitted == 1  # the model that came afterwards


def test_predictions_cannot_be_evaluated() -> None:
    async def call(address: str) -> None:
        async with calling() as client:
            await client.evaluate(BOB, address, SAID)

    assert refusal(call, FakeHost(LAYOUT, FEW)).reason is Reason.LAYOUT


def changed(**header: object) -> pb.ModelChunk:
    (made,) = chunks_of(SAID)
    for name, value in header.items():
        setattr(made.header, name, value)
    return made


def without(field: str) -> pb.ModelChunk:
    made = changed()
    made.ClearField(field)
    return made


def with_data(data: bytes) -> pb.ModelChunk:
    made = changed()
    made.data = data
    return made


def not_finite(value: float, at: int) -> pb.ModelChunk:
    vector = SAID.vector.copy()
    vector[at] = value
    return chunks_of(Model(FEW, vector))[0]


DATA = changed().data
BAD: dict[str, tuple[pb.ModelChunk, Reason, grpc.StatusCode]] = {
    "no trailer": (without("trailer"), Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "no data": (without("data"), Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "half the data": (with_data(DATA[: len(DATA) // 2]), Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "more data": (with_data(DATA + b"more"), Reason.TOO_LARGE, Code.RESOURCE_EXHAUSTED),
    "a changed byte": (with_data(bytes([DATA[0] ^ 1]) + DATA[1:]), Reason.CHECKSUM, Code.DATA_LOSS),
    "a probability that is NaN": (not_finite(np.nan, 7), Reason.NOT_FINITE, Code.INVALID_ARGUMENT),
    "an infinite count": (not_finite(np.inf, FEW.size - 1), Reason.NOT_FINITE, Code.INVALID_ARGUMENT),
    "called a model": (changed(part=pb.PART_MODEL), Reason.LAYOUT, Code.FAILED_PRECONDITION),
    "called a core": (changed(part=pb.PART_CORE), Reason.LAYOUT, Code.FAILED_PRECONDITION),
    "called a thing of tomorrow": (changed(part=5), Reason.GARBAGE, Code.INVALID_ARGUMENT),
    "more numbers than samples": (changed(numbers=1 << 40), Reason.TOO_LARGE, Code.RESOURCE_EXHAUSTED),
    "fewer numbers than samples": (changed(numbers=9), Reason.LAYOUT, Code.FAILED_PRECONDITION),
    "more bytes than samples": (changed(encoded_size=1 << 40), Reason.TOO_LARGE, Code.RESOURCE_EXHAUSTED),
}


def pull(channel: Any, call: str, message: bytes) -> Any:
    return channel.unary_stream(f"/pfl.v1.Peer/{call}")(message, timeout=10)


async def raw_refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    metadata: Any = caught.value.trailing_metadata()
    return caught.value.code(), dict(metadata)[REASON_KEY]


@pytest.mark.parametrize("name", BAD)
def test_bad_predictions_are_refused_counted_and_given_back(name: str) -> None:
    chunk, reason, code = BAD[name]

    async def main() -> None:
        host = FakeHost(LAYOUT, FEW)
        host.mailbox.takes = ("model", "core", "predictions")
        async with serving(host) as address, raw_channel(address) as channel:
            send: Any = channel.stream_stream("/pfl.v1.Peer/SendModel")  # type: ignore[call-arg]
            assert await raw_refusal(send(iter([chunk.SerializeToString()]), timeout=10)) == (code, reason)
        assert host.counts == {("SendModel", reason): 1}
        assert (host.mailbox.held, host.admitted - host.cancelled) == (0, 0)

    asyncio.run(main())


def test_a_request_that_is_none_and_one_with_the_wrong_name_are_refused() -> None:
    """GetModel has a gate of its own: it must not be a way around the one of GetPredictions."""

    async def main() -> None:
        host = FakeHost(LAYOUT, FEW)
        host.closed = {"GetPredictions"}
        asked = pb.ModelRequest(sender=ANN, run=RUN, part=pb.PART_PREDICTIONS).SerializeToString()
        async with serving(host) as address, raw_channel(address) as channel:
            assert await raw_refusal(pull(channel, "GetModel", asked)) == (Code.UNIMPLEMENTED, Reason.NOT_SERVED)
            assert await raw_refusal(pull(channel, "GetPredictions", b"\xff")) == (
                Code.INVALID_ARGUMENT,
                Reason.GARBAGE,
            )
        assert host.counts == {("GetModel", "not_served"): 1, ("GetPredictions", "garbage"): 1}
        assert host.admitted == 0

    asyncio.run(main())


def test_a_model_is_admitted_before_the_layout_is_looked_up() -> None:
    asked: list[str] = []

    class Recorder(FakeHost):
        def admit(self, call: str, envelope: Envelope) -> None:
            asked.append(f"admit {envelope.part}")
            super().admit(call, envelope)

        def layout(self, part: Part) -> Layout:
            asked.append(f"layout of {part}")
            return super().layout(part)

    async def main() -> None:
        host = Recorder(layout_of(10))
        async with serving(host) as address, calling() as client:
            with pytest.raises(Refused, match="no auxiliary data"):
                await client.send(BOB, address, predictions_of(FEW))
        assert asked == ["admit predictions", "layout of predictions"]
        assert host.cancelled == 1

    asyncio.run(main())
