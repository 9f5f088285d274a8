"""Predictions travel like models: pushed and pulled, in every encoding, and not used when they do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from pfl_node import predictions
from pfl_node.errors import LayoutMismatch, Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.predictions import layout_for
from pfl_node.settings import WireSettings
from pfl_node.types import Offer, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire import peer_pb2_grpc
from pfl_node.wire.codec import decode
from pfl_node.wire.endpoint import Endpoint
from tests.unit.wire.small_host import (
    ANN,
    BOB,
    RUN,
    FakeHost,
    calling,
    chunks_of,
    layout_of,
    model_of,
    predictions_of,
    raw_channel,
    serving,
)

LAYOUT = layout_of(1000)
FEW, MANY = layout_for(50, 10, "samples"), layout_for(60_000, 10, "samples")
OTHERS = layout_for(50, 10, "other samples")
MORE = layout_for(51, 10, "samples and one more")
SAID = predictions_of(FEW)
ALL_WAYS = [WireSettings(encoding=e, zstd=z) for e in ("fp32", "fp16", "int8") for z in (0, 1)]


# -- there and back --------------------------------------------------------------------------------------------


def test_pushed_predictions_arrive_with_what_was_said_about_them() -> None:
    async def scenario() -> None:
        for layout in (FEW, MANY):
            host, said = FakeHost(LAYOUT, layout), predictions_of(layout)
            async with serving(host) as address, calling() as client:
                moved = await client.send(BOB, address, said, round=3, tag=2, samples=40, notes={"share": 0.5})
                assert host.mailbox.collect([ANN], 3) == (Offer(ANN, said, 3, 2, 40, {"share": 0.5}),)
                assert moved == said.nbytes
            assert host.counts == {("SendModel", "ok"): 1}

    asyncio.run(scenario())
    assert [len(chunks_of(predictions_of(layout))) for layout in (FEW, MANY)] == [1, 3]


def test_pulled_predictions_come_with_what_was_said_about_them() -> None:
    async def scenario() -> None:
        for layout in (FEW, MANY):
            host = FakeHost(LAYOUT, layout)
            host.tag, host.notes = 7, {"ann": 0.25, "loss": -3.5}
            async with serving(host) as address, calling() as client:
                offer = await client.fetch(BOB, address, "predictions", layout)
                assert offer == Offer(BOB, host.predictions(), 4, 7, 12, host.notes)
                assert client.traffic.models == {(BOB, "in"): 1}
                model = await client.fetch(BOB, address, "model", LAYOUT)
                assert model == Offer(BOB, host.current, 4, 7, 12, host.notes)
            assert host.counts == {("GetPredictions", "ok"): 1, ("GetModel", "ok"): 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ALL_WAYS)
def test_every_encoding_keeps_what_the_papers_weights_need(how: WireSettings) -> None:
    """A weight is a count of samples, or one over a power of the novelty: neither may lose its small values."""

    def close(mine: Model, theirs: Model) -> None:
        assert theirs.layout == mine.layout
        assert np.abs(predictions.outputs(mine) - predictions.outputs(theirs)).max() < 0.001
        for piece in (predictions.novelty, predictions.counts):
            np.testing.assert_allclose(piece(theirs), piece(mine), rtol=0.001)

    async def scenario() -> None:
        for layout in (FEW, MANY):
            host, said = FakeHost(LAYOUT, layout), predictions_of(layout)
            async with serving(host, how) as address, calling(how) as client:
                await client.send(BOB, address, said)
                close(said, host.mailbox.take()[0].model)
                close(host.predictions(), (await client.fetch(BOB, address, "predictions", layout)).model)

    asyncio.run(scenario())


def test_int8_is_for_models_but_is_understood_from_others() -> None:
    (sent,) = chunks_of(SAID, WireSettings(encoding="int8"))
    assert sent.header.encoding == pb.ENCODING_FP16
    whole = Layout(FEW.core_entries, ())
    (other,) = chunks_of(Model(whole, SAID.vector), WireSettings(encoding="int8"))
    assert other.header.encoding == pb.ENCODING_INT8
    other.header.part, other.header.layout = pb.PART_PREDICTIONS, FEW.digest
    got = decode([other.SerializeToString()], FEW)
    assert np.abs(got.model.vector - SAID.vector).max() <= SAID.vector.max() / 254


def test_a_generated_client_is_understood() -> None:
    async def scenario() -> None:
        host = FakeHost(LAYOUT, MANY)
        async with serving(host) as address, raw_channel(address) as channel:
            stub = peer_pb2_grpc.PeerStub(channel)
            said = predictions_of(MANY)
            assert (await stub.SendModel(iter(chunks_of(said)), timeout=10)).bytes == said.nbytes
            assert host.mailbox.take()[0].model == said
            got = stub.GetPredictions(pb.PredictionsRequest(sender=ANN, run=RUN), timeout=10)
            assert decode([chunk.SerializeToString() async for chunk in got], MANY).model == host.said

    asyncio.run(scenario())


# -- what a caller refuses -------------------------------------------------------------------------------------


class Generated(peer_pb2_grpc.PeerServicer):
    """Somebody else's node: answers GetPredictions with whatever it was given."""

    def __init__(self, answer: list[pb.ModelChunk]) -> None:
        self.answer = answer

    async def GetPredictions(  # noqa: N802
        self, request: pb.PredictionsRequest, context: Any
    ) -> AsyncIterator[pb.ModelChunk]:
        for chunk in self.answer:
            yield chunk


def fetched(answer: list[pb.ModelChunk], layout: Layout = FEW) -> Offer:
    async def main() -> Offer:
        endpoint, servicer = Endpoint(), Generated(answer)
        endpoint.add("pfl.v1.Peer", lambda s: peer_pb2_grpc.add_PeerServicer_to_server(servicer, s))
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        try:
            async with calling() as client:
                return await client.fetch(BOB, endpoint.address, "predictions", layout)
        finally:
            await endpoint.stop(0)

    return asyncio.run(main())


def test_a_generated_servicer_is_understood() -> None:
    for layout in (FEW, MANY):
        said = predictions_of(layout)
        assert fetched(chunks_of(said, sender=BOB), layout) == Offer(BOB, said)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (chunks_of(predictions_of(OTHERS), sender=BOB), Reason.LAYOUT),
        (chunks_of(predictions_of(MORE), sender=BOB), Reason.LAYOUT),
        (chunks_of(model_of(LAYOUT).head, sender=BOB), Reason.LAYOUT),
        (chunks_of(model_of(LAYOUT), sender=BOB), Reason.LAYOUT),
        (chunks_of(SAID, sender=PeerId("eve")), Reason.UNKNOWN_PEER),
        ([], Reason.TRUNCATED),
    ],
)
def test_an_answer_is_checked_like_everything_else(answer: list[pb.ModelChunk], reason: Reason) -> None:
    with pytest.raises(Refused) as caught:
        fetched(answer)
    assert (caught.value.reason, caught.value.peer) == (reason, BOB)


def test_an_answer_that_calls_itself_something_else_is_not_used() -> None:
    answer = chunks_of(SAID, sender=BOB)
    answer[0].header.part = pb.PART_HEAD
    with pytest.raises(Refused, match="asked for the predictions, got the head"):
        fetched(answer)


def test_an_answer_that_ends_early_or_is_not_finite_is_not_used() -> None:
    said = predictions_of(MANY)
    vector = said.vector.copy()
    vector[500_000] = np.nan
    for answer, reason in (
        (chunks_of(said, sender=BOB)[:2], Reason.TRUNCATED),
        (chunks_of(Model(MANY, vector), sender=BOB), Reason.NOT_FINITE),
    ):
        with pytest.raises(Refused) as caught:
            fetched(answer, MANY)
        assert caught.value.reason is reason


def test_predictions_are_no_part_of_a_model() -> None:
    with pytest.raises(LayoutMismatch, match="a model has no predictions"):
        fetched([], LAYOUT)
