"""What no peer may do to a node, over real gRPC: each is answered with a precise status, counted, and is cheap.

After every one the node still serves, nothing that waited is lost, and nothing that was admitted is forgotten.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import grpc
import numpy as np
import pytest
import zstandard
from structlog.testing import capture_logs

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.protocol.mailbox import Limits
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import MAX_NOTES, encode
from pfl_node.wire.framing import MAX_HEADER
from pfl_node.wire.quirks.stream_status import StreamStatus
from pfl_node.wire.statuses import REASON_KEY
from tests.unit.wire.small_host import ANN, BOB, RUN, FakeHost, calling, layout_of, model_of, raw_channel, serving

Code = grpc.StatusCode
LAYOUT = layout_of(2000)
MODEL = model_of(LAYOUT)
EVE = PeerId("eve")


def chunk(**header: object) -> pb.ModelChunk:
    """A whole model of eve's in one message, with a changed header."""
    made = pb.ModelChunk.FromString(next(encode(MODEL, Envelope(EVE, RUN, round=5), WireSettings())))
    for name, value in header.items():
        setattr(made.header, name, value)
    return made


def without_trailer() -> bytes:
    made = chunk()
    made.ClearField("trailer")
    return made.SerializeToString()


def with_data(data: bytes, **header: object) -> bytes:
    made = chunk(**header)
    made.data = data
    return made.SerializeToString()


def not_finite(value: float) -> bytes:
    vector = MODEL.vector.copy()
    vector[1234] = value
    return next(encode(Model(LAYOUT, vector), Envelope(EVE, RUN, round=5), WireSettings()))


def flipped() -> bytes:
    data = bytearray(chunk().data)
    data[777] ^= 1
    return with_data(bytes(data))


@cache
def bomb() -> bytes:
    params = zstandard.ZstdCompressionParameters.from_level(19, window_log=20)
    return zstandard.ZstdCompressor(compression_params=params).compress(bytes(256 << 20))


def many_notes() -> bytes:
    made = chunk()
    made.header.notes.update({str(i): 0.0 for i in range(MAX_NOTES + 1)})
    return made.SerializeToString()


BAD: dict[str, tuple[Callable[[], list[bytes]], Reason, grpc.StatusCode]] = {
    "garbage bytes": (lambda: [b"\xff\xfe\xfdgarbage"], Reason.GARBAGE, Code.INVALID_ARGUMENT),
    "no header": (lambda: [pb.ModelChunk(data=b"12").SerializeToString()], Reason.GARBAGE, Code.INVALID_ARGUMENT),
    "another version": (lambda: [chunk(version=7).SerializeToString()], Reason.VERSION, Code.FAILED_PRECONDITION),
    "an empty stream": (list, Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "a truncated stream": (lambda: [without_trailer()], Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "half a payload": (lambda: [with_data(chunk().data[:4000])], Reason.TRUNCATED, Code.INVALID_ARGUMENT),
    "NaN": (lambda: [not_finite(np.nan)], Reason.NOT_FINITE, Code.INVALID_ARGUMENT),
    "infinity": (lambda: [not_finite(-np.inf)], Reason.NOT_FINITE, Code.INVALID_ARGUMENT),
    "a wrong layout": (lambda: [chunk(layout="x").SerializeToString()], Reason.LAYOUT, Code.FAILED_PRECONDITION),
    "an unknown run": (lambda: [chunk(run="x").SerializeToString()], Reason.UNKNOWN_RUN, Code.FAILED_PRECONDITION),
    "a stale round": (lambda: [chunk(round=1).SerializeToString()], Reason.STALE_ROUND, Code.FAILED_PRECONDITION),
    "a future round": (lambda: [chunk(round=99).SerializeToString()], Reason.FUTURE_ROUND, Code.OUT_OF_RANGE),
    "too many numbers": (
        lambda: [chunk(numbers=1 << 40).SerializeToString()],
        Reason.TOO_LARGE,
        Code.RESOURCE_EXHAUSTED,
    ),
    "too many bytes promised": (
        lambda: [chunk(encoded_size=1 << 50).SerializeToString()],
        Reason.TOO_LARGE,
        Code.RESOURCE_EXHAUSTED,
    ),
    "more bytes than promised": (
        lambda: [with_data(chunk().data + b"more")],
        Reason.TOO_LARGE,
        Code.RESOURCE_EXHAUSTED,
    ),
    "an oversize header": (
        lambda: [chunk(sender="e" * MAX_HEADER).SerializeToString()],
        Reason.TOO_LARGE,
        Code.RESOURCE_EXHAUSTED,
    ),
    "too many notes": (lambda: [many_notes()], Reason.TOO_LARGE, Code.RESOURCE_EXHAUSTED),
    "a decompression bomb": (
        lambda: [with_data(bomb(), zstd=True, encoded_size=0)],
        Reason.BOMB,
        Code.RESOURCE_EXHAUSTED,
    ),
    "a changed byte": (lambda: [flipped()], Reason.CHECKSUM, Code.DATA_LOSS),
}


class Scene:
    """Bob's node in round 5, a model of ann's waiting for it; eve has a raw channel."""

    def __init__(self, host: FakeHost, address: str, channel: Any) -> None:
        self.host = host
        self.address = address
        self.send = channel.stream_unary("/pfl.v1.Peer/SendModel")
        self.evaluate = channel.stream_unary("/pfl.v1.Peer/EvaluateModel")

    async def refusal(self, call: Any) -> tuple[grpc.StatusCode, str, str]:
        status = StreamStatus(call)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        error = status.corrected(caught.value)
        metadata: Any = error.trailing_metadata()
        return error.code(), dict(metadata).get(REASON_KEY, ""), error.details() or ""

    async def is_well(self) -> None:
        """Bob still takes models, has not lost ann's, and forgot nothing that he admitted."""
        async with calling() as client:
            await client.send(BOB, self.address, MODEL, round=6)
        assert self.host.mailbox.collect([ANN, EVE], 5) == (Offer(ANN, MODEL, round=5),)
        assert self.host.mailbox.collect([ANN], 6) == (Offer(ANN, MODEL, round=6),)
        delivered = self.host.counts["SendModel", "ok"]
        assert self.host.admitted - self.host.cancelled == delivered


def scene(play: Callable[[Scene], Awaitable[None]], layout: Layout = LAYOUT, **options: Any) -> FakeHost:
    async def main() -> FakeHost:
        host = FakeHost(layout, limits=options.pop("limits", None))
        host.mailbox.advance(5)
        async with serving(host, **options) as address, raw_channel(address) as channel:
            async with calling() as client:
                await client.send(BOB, address, MODEL, round=5)
            await play(Scene(host, address, channel))
        return host

    return asyncio.run(main())


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_counted_and_survived(name: str) -> None:
    make, reason, code = BAD[name]

    async def play(scene: Scene) -> None:
        for _ in range(3):
            answered, said, text = await scene.refusal(scene.send(iter(make()), timeout=10))
            assert (answered, said) == (code, reason), text
        assert scene.host.counts["SendModel", reason] == 3
        await scene.is_well()

    scene(play)


@pytest.mark.parametrize(
    "name", ["garbage bytes", "a truncated stream", "NaN", "a wrong layout", "an unknown run"]
)
def test_evaluate_model_has_the_same_rules(name: str) -> None:
    make, reason, code = BAD[name]

    async def play(scene: Scene) -> None:
        answered, said, text = await scene.refusal(scene.evaluate(iter(make()), timeout=10))
        assert (answered, said) == (code, reason), text
        assert scene.host.counts["EvaluateModel", reason] == 1
        await scene.is_well()

    scene(play)


def test_a_flood_from_one_peer_is_refused_and_others_are_still_heard() -> None:
    async def play(scene: Scene) -> None:
        flood = chunk()
        flood.header.ClearField("round")
        message = flood.SerializeToString()
        answers = await asyncio.gather(
            *(scene.send(iter([message]), timeout=10) for _ in range(20)), return_exceptions=True
        )
        refused = [a for a in answers if isinstance(a, grpc.aio.AioRpcError)]
        assert len(refused) == 18
        assert {a.code() for a in refused} == {Code.RESOURCE_EXHAUSTED}
        assert scene.host.counts["SendModel", Reason.FLOOD] == 18
        async with calling() as client:
            await client.send(BOB, scene.address, MODEL)
        assert [o.sender for o in scene.host.mailbox.take(9)] == [EVE, EVE, ANN]
        await scene.is_well()

    scene(play, limits=Limits(per_peer=2, inbox=4))


def test_what_a_peer_breaks_off_is_given_back() -> None:
    async def play(scene: Scene) -> None:
        for _ in range(3):  # more than it may have waiting
            made = chunk()
            made.header.ClearField("round")
            made.ClearField("trailer")
            call = scene.send()
            await call.write(made.SerializeToString())
            await scene.host.until(lambda h: h.admitted > h.cancelled + h.counts["SendModel", "ok"])
            call.cancel()
            await scene.host.counted("SendModel", "truncated")
            scene.host.counts["SendModel", "truncated"] = 0
        await scene.is_well()

    scene(play, limits=Limits(per_peer=1))


def test_a_stream_that_falls_silent_is_ended() -> None:
    async def play(scene: Scene) -> None:
        call = scene.send(timeout=10)
        await call.write(without_trailer())
        answered, said, text = await scene.refusal(call)
        assert (answered, said, text) == (Code.INVALID_ARGUMENT, Reason.TRUNCATED, "no progress for 0.2 s")
        await scene.is_well()

    scene(play, quiet=0.2)


def test_a_stream_that_trickles_for_ever_is_ended() -> None:
    async def play(scene: Scene) -> None:
        call = scene.send(timeout=30)
        await call.write(without_trailer())
        empty = pb.ModelChunk().SerializeToString()

        async def trickle() -> None:
            while True:
                await call.write(empty)
                await asyncio.sleep(0.02)

        refusal = asyncio.create_task(scene.refusal(call))  # before a write that may meet the end of the call
        await asyncio.sleep(0)
        drops = asyncio.create_task(trickle())
        answered, said, text = await refusal
        drops.cancel()
        await asyncio.gather(drops, return_exceptions=True)
        assert (answered, said) == (Code.INVALID_ARGUMENT, Reason.TRUNCATED)
        assert text == "slower than 1e+09 bytes per second"
        await scene.is_well()

    scene(play, quiet=1.0, settings=WireSettings(slowest=1e9))


def test_a_message_beyond_the_limit_is_refused_by_grpc_itself() -> None:
    async def play(scene: Scene) -> None:
        async with grpc.aio.insecure_channel(
            scene.address, options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            send: Any = channel.stream_unary("/pfl.v1.Peer/SendModel")  # type: ignore[call-arg]
            answered, _, text = await scene.refusal(send(iter([bytes(64 << 20)]), timeout=10))
        assert answered is Code.RESOURCE_EXHAUSTED
        assert "larger than max" in text
        await scene.host.counted("SendModel", "truncated")  # the stream ended: all that a handler gets to see
        await scene.is_well()

    scene(play)


def test_a_node_that_is_starting_says_so() -> None:
    async def play(scene: Scene) -> None:
        scene.host.ready = False
        answer = await scene.refusal(scene.send(iter([chunk().SerializeToString()]), timeout=10))
        assert answer == (Code.UNAVAILABLE, Reason.NOT_READY, "still starting")
        scene.host.ready = True
        await scene.is_well()

    scene(play)


def test_a_service_that_is_not_offered_says_so_and_a_pull_is_refused_like_a_push() -> None:
    class Shy(FakeHost):
        def admit(self, call: str, envelope: Envelope) -> None:
            if call == "GetHead":
                raise Refused(Reason.NOT_SERVED, "no heads here")
            super().admit(call, envelope)

    async def main() -> None:
        host = Shy(LAYOUT)
        async with serving(host) as address, calling() as client, calling(run="other") as stranger:
            for call, reason in (
                (client.fetch(BOB, address, "head", LAYOUT), Reason.NOT_SERVED),
                (client.fetch(BOB, address, "model", layout_of(7)), Reason.LAYOUT),
                (stranger.fetch(BOB, address, "model", LAYOUT), Reason.UNKNOWN_RUN),
            ):
                with pytest.raises(Refused) as caught:
                    await call
                assert (caught.value.reason, caught.value.peer) == (reason, BOB)
        assert host.counts == {
            ("GetHead", "not_served"): 1,
            ("GetModel", "layout"): 1,
            ("GetModel", "unknown_run"): 1,
        }

    asyncio.run(main())


def test_a_fault_of_our_own_is_an_internal_error_and_the_node_lives() -> None:
    class Broken(FakeHost):
        async def evaluate(self, offer: Offer) -> Eval:
            raise ZeroDivisionError("a bug")

    async def main() -> None:
        host = Broken(LAYOUT)
        async with serving(host) as address, raw_channel(address) as channel:
            scene = Scene(host, address, channel)
            answered, said, text = await scene.refusal(
                scene.evaluate(iter([chunk().SerializeToString()]), timeout=10)
            )
            assert (answered, said) == (Code.INTERNAL, "internal")
            assert "a bug" not in text
            assert host.counts == {("EvaluateModel", "internal"): 1}
            async with calling() as client:
                await client.send(BOB, address, MODEL)

    with capture_logs() as logs:
        asyncio.run(main())
    assert [(entry["event"], entry["call"], entry["peer"]) for entry in logs] == [
        ("a call failed", "EvaluateModel", "eve")
    ]


def test_what_is_refused_takes_no_memory() -> None:
    layout = layout_of(8_000_000)  # 32 MB
    good = Envelope(EVE, RUN, round=5)
    first = pb.ModelChunk.FromString(
        next(encode(Model(layout, np.zeros(layout.size, np.float32)), good, WireSettings()))
    )
    first.ClearField("data")
    headers: list[bytes] = []
    for name, value in (("numbers", 1 << 40), ("layout", "x"), ("run", "x"), ("encoded_size", 1 << 50)):
        bad = pb.ModelChunk()
        bad.CopyFrom(first)
        setattr(bad.header, name, value)
        headers.append(bad.SerializeToString())
    small_bomb = with_data(bomb(), zstd=True, encoded_size=0)

    async def main() -> None:
        host, victim = FakeHost(layout), FakeHost(LAYOUT)
        host.mailbox.advance(5)
        async with serving(host) as address, raw_channel(address) as channel:
            scene = Scene(host, address, channel)
            async with serving(victim) as there, raw_channel(there) as other:
                bombed = Scene(victim, there, other)
                tracemalloc.start()
                for header in headers:
                    await scene.refusal(scene.send(iter([header]), timeout=10))
                await bombed.refusal(bombed.send(iter([small_bomb]), timeout=10))
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        assert victim.counts == {("SendModel", "bomb"): 1}
        assert peak < 3_000_000

    asyncio.run(main())
