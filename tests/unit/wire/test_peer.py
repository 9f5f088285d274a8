"""Both ends of the wire on localhost: what arrives, which clients and servers it fits, what a failure says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import PeerGone, PeerTimedOut, Reason, Refused
from pfl_node.model import Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire import peer_pb2_grpc
from pfl_node.wire.codec import decode, encode
from pfl_node.wire.endpoint import Endpoint
from tests.unit.wire.small_host import ANN, BOB, RUN, FakeHost, calling, layout_of, model_of, raw_channel, serving

SMALL, LARGE = layout_of(1000), layout_of(700_000)


def test_a_pushed_model_arrives_with_what_was_said_about_it() -> None:
    async def scenario() -> None:
        for layout in (SMALL, LARGE):
            host, model = FakeHost(layout), model_of(layout)
            async with serving(host) as address, calling() as client:
                moved = await client.send(BOB, address, model, round=3, tag=2, samples=40, notes={"share": 0.5})
                (offer,) = host.mailbox.collect([ANN], 3)
                assert offer == Offer(ANN, model, 3, 2, 40, {"share": 0.5})
                assert moved == model.nbytes
                assert client.traffic.bytes == {(BOB, "out"): moved}
                assert client.traffic.models == {(BOB, "out"): 1}
            assert host.counts == {("SendModel", "ok"): 1}
            assert (host.nbytes, host.admitted, host.cancelled) == (model.nbytes, 1, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "how", [WireSettings(encoding=e, zstd=z) for e in ("fp32", "fp16", "int8") for z in (0, 1)]
)
def test_every_encoding_travels_both_ways(how: WireSettings) -> None:
    async def scenario() -> None:
        for layout in (SMALL, layout_of(3_000_000)):
            host, model = FakeHost(layout), model_of(layout)
            async with serving(host, how) as address, calling(how) as client:
                await client.send(BOB, address, model)
                (offer,) = host.mailbox.take()
                assert np.abs(offer.model.vector - model.vector).max() < 0.03
                back = await client.fetch(BOB, address, "model", layout)
                assert np.abs(back.model.vector - host.current.vector).max() < 0.03

    asyncio.run(scenario())


def test_a_peer_scores_my_model() -> None:
    async def scenario() -> None:
        for layout in (SMALL, LARGE):
            host, model = FakeHost(layout), model_of(layout)
            async with serving(host) as address, calling() as client:
                loss = float(np.abs(model.vector).mean())
                assert await client.evaluate(BOB, address, model) == Eval(loss, 0.5, 7)
            assert host.counts == {("EvaluateModel", "ok"): 1}

    asyncio.run(scenario())


def test_models_cores_and_heads_can_be_pulled() -> None:
    async def scenario(part: Part, call: str) -> None:
        for layout in (SMALL, LARGE):
            host = FakeHost(layout)
            async with serving(host) as address, calling() as client:
                offer = await client.fetch(BOB, address, part, layout)
                again = await client.fetch(BOB, address, part, layout.of(part))
                assert offer == again == Offer(BOB, host.current.of(part), round=4, samples=12)
                assert client.traffic.models == {(BOB, "in"): 2}
            assert host.counts == {(call, "ok"): 2}

    asyncio.run(scenario("model", "GetModel"))
    asyncio.run(scenario("core", "GetModel"))
    asyncio.run(scenario("head", "GetHead"))


def test_the_status_is_the_hosts_own() -> None:
    async def scenario() -> None:
        host = FakeHost(SMALL)
        async with serving(host) as address, calling() as client:
            assert await client.status(address) == host.status()

    asyncio.run(scenario())


def test_a_uvloop_carries_it_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        host, model = FakeHost(LARGE), model_of(LARGE)
        async with serving(host) as address, calling() as client:
            await asyncio.gather(*(client.send(BOB, address, model, round=r) for r in range(4)))
            assert [host.mailbox.collect([ANN], r)[0].model for r in range(4)] == [model] * 4

    uvloop.run(scenario())


# -- the contract is the proto: other clients, other servers ---------------------------------------------------


def test_a_generated_client_is_understood() -> None:
    async def scenario() -> None:
        host, model = FakeHost(LARGE), model_of(LARGE)
        async with serving(host) as address, raw_channel(address) as channel:
            stub = peer_pb2_grpc.PeerStub(channel)
            chunks = [pb.ModelChunk.FromString(m) for m in encode(model, Envelope(ANN, RUN), WireSettings())]
            assert (await stub.SendModel(iter(chunks), timeout=10)).bytes == model.nbytes
            assert host.mailbox.take()[0].model == model
            got = stub.GetModel(pb.ModelRequest(sender=ANN, run=RUN), timeout=10)
            assert decode([chunk.SerializeToString() async for chunk in got], LARGE).model == host.current
            assert (await stub.GetStatus(pb.StatusRequest(), timeout=10)).id == BOB

    asyncio.run(scenario())


class Generated(peer_pb2_grpc.PeerServicer):
    """What somebody else would write from the proto alone."""

    def __init__(self, answer: Offer) -> None:
        self.answer = answer
        self.got: Offer | None = None

    async def _read(self, chunks: AsyncIterator[pb.ModelChunk]) -> Offer:
        return decode([chunk.SerializeToString() async for chunk in chunks], LARGE)

    async def SendModel(self, chunks: AsyncIterator[pb.ModelChunk], context: Any) -> pb.Receipt:  # noqa: N802
        self.got = await self._read(chunks)
        return pb.Receipt()

    async def EvaluateModel(self, chunks: AsyncIterator[pb.ModelChunk], context: Any) -> pb.Score:  # noqa: N802
        await self._read(chunks)
        return pb.Score(loss=float("nan"))

    async def GetHead(self, request: pb.HeadRequest, context: Any) -> AsyncIterator[pb.ModelChunk]:  # noqa: N802
        for message in encode(self.answer.model, Envelope(self.answer.sender, RUN), WireSettings()):
            yield pb.ModelChunk.FromString(message)


def with_generated_servicer(servicer: Any, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        endpoint = Endpoint()
        endpoint.add("pfl.v1.Peer", lambda s: peer_pb2_grpc.add_PeerServicer_to_server(servicer, s))
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        try:
            await scenario(endpoint.address)
        finally:
            await endpoint.stop(0)

    asyncio.run(main())


def test_a_generated_servicer_understands_us() -> None:
    model = model_of(LARGE)
    servicer = Generated(Offer(BOB, model.head))

    async def scenario(address: str) -> None:
        async with calling() as client:
            await client.send(BOB, address, model, tag=1)
            assert servicer.got == Offer(ANN, model, tag=1)
            assert (await client.fetch(BOB, address, "head", LARGE)).model == model.head

    with_generated_servicer(servicer, scenario)


def test_an_answer_is_checked_like_everything_else() -> None:
    bad_head = model_of(LARGE).head.vector.copy()
    bad_head[3] = np.nan
    cases: list[tuple[Offer, Reason]] = [
        (Offer(BOB, Model(LARGE.head, bad_head)), Reason.NOT_FINITE),
        (Offer(BOB, model_of(LARGE).core), Reason.LAYOUT),
        (Offer(BOB, model_of(layout_of(9, 11)).head), Reason.LAYOUT),
        (Offer(PeerId("eve"), model_of(LARGE).head), Reason.UNKNOWN_PEER),
    ]
    for answer, reason in cases:

        async def scenario(address: str, reason: Reason = reason) -> None:
            async with calling() as client:
                with pytest.raises(Refused) as caught:
                    await client.fetch(BOB, address, "head", LARGE)
                assert (caught.value.reason, caught.value.peer) == (reason, BOB)
                with pytest.raises(Refused, match="its score is loss nan"):
                    await client.evaluate(BOB, address, model_of(LARGE))
                with pytest.raises(Refused) as caught:
                    await client.fetch(BOB, address, "model", LARGE)
                assert caught.value.reason is Reason.NOT_SERVED

        with_generated_servicer(Generated(answer), scenario)


# -- peers that are not there ----------------------------------------------------------------------------------


def test_a_dead_peer_is_gone_at_once_and_is_reached_again_when_it_is_back() -> None:
    async def scenario() -> None:
        model = model_of(SMALL)
        async with calling() as client:
            async with serving(FakeHost(SMALL)) as address:
                await client.send(BOB, address, model)
            with pytest.raises(PeerGone, match="bob"):
                await client.send(BOB, address, model)
            client.forget(BOB)
            host = FakeHost(SMALL)
            async with serving(host) as new_address:
                await client.send(BOB, new_address, model)
                assert len(host.mailbox) == 1

    asyncio.run(scenario())


def test_a_port_that_never_answers_is_given_up_after_the_connect_timeout() -> None:
    async def scenario(address: str) -> None:
        async with calling(WireSettings(connect_timeout=0.2)) as client:
            with pytest.raises(PeerGone):
                await client.send(BOB, address, model_of(SMALL))
            with pytest.raises(PeerGone):
                await client.status(address)

    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        asyncio.run(scenario(f"127.0.0.1:{mute.getsockname()[1]}"))


def test_a_peer_that_thinks_too_long_is_gone() -> None:
    class Slow(FakeHost):
        async def evaluate(self, offer: Offer) -> Eval:
            await asyncio.Event().wait()
            raise AssertionError

    async def scenario() -> None:
        host = Slow(SMALL)
        async with serving(host) as address, calling(WireSettings(base_timeout=0.2)) as client:
            with pytest.raises(PeerTimedOut, match="deadline"):
                await client.evaluate(BOB, address, model_of(SMALL))
            await host.counted("EvaluateModel", "truncated")
            assert host.cancelled == 0  # it was handed over

    asyncio.run(scenario())


class Stalls(peer_pb2_grpc.PeerServicer):
    """Begins, and then neither sends nor takes anything more."""

    async def GetModel(self, request: pb.ModelRequest, context: Any) -> AsyncIterator[pb.ModelChunk]:  # noqa: N802
        envelope = Envelope(BOB, RUN, part="model")
        yield pb.ModelChunk.FromString(next(encode(model_of(LARGE), envelope, WireSettings())))
        await asyncio.Event().wait()

    async def SendModel(self, chunks: AsyncIterator[pb.ModelChunk], context: Any) -> pb.Receipt:  # noqa: N802
        await anext(chunks)
        await asyncio.Event().wait()
        raise AssertionError


def test_a_stream_that_stands_still_is_over_long_before_a_slow_one_would_be() -> None:
    async def scenario(address: str) -> None:
        slow = WireSettings(min_bandwidth=1.0)  # weeks for a model
        async with calling(slow, quiet=0.3) as client:
            with pytest.raises(PeerTimedOut, match="stalled"):
                await client.fetch(BOB, address, "model", LARGE)
            with pytest.raises(PeerTimedOut, match="stalled"):
                await client.send(BOB, address, model_of(layout_of(5_000_000)))

    with_generated_servicer(Stalls(), scenario)


def test_forgetting_a_peer_ends_its_calls_and_cancelling_stays_cancelling() -> None:
    class Slow(FakeHost):
        async def evaluate(self, offer: Offer) -> Eval:
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def scenario(layout: Any) -> None:
        async with serving(Slow(layout)) as address, calling() as client:
            task = asyncio.create_task(client.evaluate(BOB, address, model_of(layout)))
            await reached.wait()
            client.forget(BOB)
            with pytest.raises(PeerGone):
                await task
            reached.clear()
            task = asyncio.create_task(client.evaluate(BOB, address, model_of(layout)))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    for layout in (SMALL, LARGE):
        reached = asyncio.Event()
        asyncio.run(scenario(layout))


def test_a_peer_that_moves_is_found_at_its_new_address() -> None:
    async def scenario() -> None:
        first, second = FakeHost(SMALL), FakeHost(SMALL)
        async with serving(first) as here, serving(second) as there, calling() as client:
            await client.send(BOB, here, model_of(SMALL))
            await client.send(BOB, there, model_of(SMALL))
            assert len(first.mailbox) == len(second.mailbox) == 1

    asyncio.run(scenario())


def test_a_refusal_of_a_stream_is_never_lost_in_its_writes() -> None:
    async def scenario() -> None:
        host, model = FakeHost(LARGE), model_of(LARGE)
        host.mailbox.advance(9)
        async with serving(host) as address, calling() as client:
            for _ in range(30):
                with pytest.raises(Refused, match="round 1 is over, the current round is 9") as refused:
                    await client.send(BOB, address, model, round=1)
                assert refused.value.round == 9
        assert host.counts == {("SendModel", "stale_round"): 30}

    asyncio.run(scenario())


def test_something_else_on_the_port_is_told_from_a_peer() -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        async with calling() as client:
            with pytest.raises(Refused) as caught:
                await client.send(BOB, endpoint.address, model_of(SMALL))
            assert caught.value.reason is Reason.NOT_SERVED
        await endpoint.stop(0)

    asyncio.run(scenario())


def test_the_event_loop_comes_round_between_chunks() -> None:
    async def scenario() -> None:
        host, model = FakeHost(layout_of(5_000_000)), model_of(layout_of(5_000_000))
        rounds = 0

        async def tick() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        async with serving(host) as address, calling() as client:
            ticking = asyncio.create_task(tick())
            await client.send(BOB, address, model)
            ticking.cancel()
        assert rounds > 10  # of 40 chunks, as gRPC may have several in hand at once

    asyncio.run(scenario())
