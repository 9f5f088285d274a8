"""A transfer that breaks off continues where it broke. Real connections through a proxy that breaks them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import numpy as np
import pytest

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Part
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire import peer_pb2_grpc
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import Decoder, encode, read_header
from pfl_node.wire.download import Download
from pfl_node.wire.framing import frame, parse
from pfl_node.wire.partial_transfers import LEAST, MOST, PartialTransfers
from pfl_node.wire.payload import Stream
from pfl_node.wire.transfer_progress import MessageSize
from tests.netns.proxy import Net, NodeProxy
from tests.unit.wire.small_host import ANN, BOB, RUN, FakeHost, calling, layout_of, model_of, raw_channel, serving
from tests.unit.wire.test_peer import with_generated_servicer

LAYOUT = layout_of(400_000)  # 1.6 MB
LARGE = layout_of(1_100_000)  # more than fits into the buffers of a connection
LOST = 0.3  # of the model, which may be on its way when the connection breaks
CHUNK = 1 << 16
NAME = b"0123456789abcdef"
Scene = Callable[[FakeHost, NodeProxy, PeerClient], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt to continue comes at once."""
    monkeypatch.setattr("pfl_node.wire.client.FIRST_DELAY", 0.05)


def play(scene: Scene, settings: WireSettings | None = None, layout: Layout = LAYOUT) -> None:
    """Bob behind a proxy, and a client of his."""

    async def main() -> None:
        host = FakeHost(layout)
        async with Net() as net, serving(host, settings) as address, calling(settings) as client:
            proxy = await net.proxy("bob")
            proxy.leads_to(address)
            proxy.rate = 60e6
            await scene(host, proxy, client)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("layout", "how"),
    [
        (LAYOUT, {}),
        (layout_of(1_200_000), {"encoding": "int8"}),
        (layout_of(700_000), {"encoding": "fp16", "zstd": 1}),
    ],
    ids=["fp32", "int8", "fp16, zstd"],
)
def test_a_push_that_breaks_off_continues_and_nothing_is_sent_twice(layout: Layout, how: dict[str, Any]) -> None:
    model = model_of(layout)

    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        whole = await client.send(BOB, proxy.address, model, round=1)
        before = proxy.carried
        cut = proxy.after(int(0.7 * whole), proxy.reset)
        await client.send(BOB, proxy.address, model, round=2)
        assert cut.is_set()
        assert proxy.carried - before < (1 + LOST) * whole
        first, second = host.mailbox.collect([ANN], 1), host.mailbox.collect([ANN], 2)
        assert first[0].model.vector.tobytes() == second[0].model.vector.tobytes()
        assert host.counts == {("SendModel", "ok"): 2, ("SendModel", "truncated"): 1, ("GetOffset", "ok"): 1}

    play(scene, WireSettings(chunk=CHUNK, **how), layout)


def test_a_receiver_that_was_restarted_begins_again() -> None:
    async def scene(_: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        host = FakeHost(LARGE)
        async with AsyncExitStack() as later:
            other = await later.enter_async_context(serving(host))

            def restart() -> None:
                proxy.leads_to(other)
                proxy.reset()

            proxy.after(1_000_000, restart)
            await client.send(BOB, proxy.address, model_of(LARGE))
            assert len(host.mailbox) == 1

    play(scene, layout=LARGE)


def test_a_receiver_that_keeps_nothing_gets_no_second_attempt() -> None:
    """A node of an earlier version, or with `wire.resume = 0`."""

    class Breaks(peer_pb2_grpc.PeerServicer):
        calls = 0

        async def SendModel(self, chunks: Any, context: Any) -> pb.Receipt:  # noqa: N802
            self.calls += 1
            async for chunk in chunks:
                if len(chunk.data) > 1000:
                    break
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            raise AssertionError

    breaks = Breaks()

    async def scenario(address: str) -> None:
        async with calling() as client:
            with pytest.raises(PeerGone):
                await client.send(BOB, address, model_of(LAYOUT))
        assert breaks.calls == 1

    with_generated_servicer(breaks, scenario)


async def send_half(proxy: NodeProxy, client: PeerClient) -> None:
    """The model of round 1, until Bob is silent and declared dead."""
    silent = proxy.after(1_500_000, proxy.silence)
    sending = asyncio.create_task(client.send(BOB, proxy.address, model_of(LARGE), round=1))
    await silent.wait()
    client.forget(BOB)
    with pytest.raises(PeerGone, match="declared dead"):
        await sending


def test_a_half_sent_model_to_a_peer_that_was_declared_dead_is_finished_when_the_peer_is_back() -> None:
    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        await send_half(proxy, client)
        assert client.transferring(BOB)
        proxy.reset()
        proxy.speak()
        await client.send(BOB, proxy.address, model_of(LARGE, seed=2), round=2)  # one at a time
        assert [o.round for o in (*host.mailbox.collect([ANN], 1), *host.mailbox.collect([ANN], 2))] == [1, 2]
        assert not client.transferring(BOB)

    play(scene, layout=LARGE)


def test_a_model_that_is_stale_by_then_makes_room_for_the_next() -> None:
    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        await send_half(proxy, client)
        host.mailbox.advance(7)
        proxy.reset()
        proxy.speak()
        await client.send(BOB, proxy.address, model_of(LARGE, seed=2), round=7)
        assert host.counts["SendModel", "stale_round"] == host.counts["SendModel", "ok"] == 1

    play(scene, layout=LARGE)


def test_a_peer_that_is_back_at_another_address_gets_the_next_model_at_once() -> None:
    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        await send_half(proxy, client)
        async with serving(host) as elsewhere:
            await client.send(BOB, elsewhere, model_of(LARGE, seed=2), round=2)
        assert host.mailbox.here([ANN], 2)
        assert not host.mailbox.here([ANN], 1)

    play(scene, layout=LARGE)


def test_closing_a_client_ends_what_goes_on_in_the_background() -> None:
    async def scene(_: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        await send_half(proxy, client)
        await client.close()
        assert not client.transferring(BOB)

    play(scene, layout=LARGE)


@pytest.mark.parametrize("part", ["model", "core"])
def test_a_fetch_that_breaks_off_continues(part: Part) -> None:
    """A part of the published model is a new object for each call."""
    layout = LAYOUT.of(part)

    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        fetching = asyncio.create_task(client.fetch(BOB, proxy.address, part, LAYOUT))
        await host.until(lambda h: h.admitted > 0)
        (download,) = client._transfers[BOB]
        while not isinstance(download, Download) or download.received < 700_000:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        proxy.reset()
        offer = await fetching
        assert download.received == layout.nbytes
        assert host.resumes == [False, True]
        assert offer.model.vector.tobytes() == host.current.of(part).vector.tobytes()

    play(scene)


def test_a_transfer_that_makes_progress_has_no_deadline() -> None:
    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        proxy.rate = 5e6  # 0.9 s
        await client.send(BOB, proxy.address, model_of(LARGE))
        assert (client.bandwidths.of(BOB).known or 1e9) < 6e6
        assert host.counts == {("SendModel", "ok"): 1}

    play(scene, WireSettings(base_timeout=0.3, min_bandwidth=1e9, chunk=CHUNK), LARGE)


# -- what the receiver keeps -----------------------------------------------------------------------------------


def stream_of(model: Model, offset: int = 0, name: bytes = NAME, **wire: Any) -> list[bytes]:
    how = WireSettings(**wire)
    return list(encode(model, Envelope(ANN, RUN), how, Stream(MessageSize(1 << 18, 1e9), name, offset)))


def begun(model: Model, messages: int, name: bytes = NAME) -> Decoder:
    envelope = Envelope(ANN, RUN)
    first, *others = stream_of(model, name=name)[: max(1, messages)]
    chunk, _ = read_header(first)
    decoder = Decoder(chunk, envelope, model.layout)
    decoder.take(chunk)
    for message in others:
        decoder.take(parse(message))
    return decoder


def keep(kept: PartialTransfers, sender: str, decoder: Decoder, now: float = 0.0) -> bool:
    return kept.end(sender, kept.begin(sender, decoder, lambda: None), now, broken=True)


def offset(kept: PartialTransfers, sender: str, now: float = 0.0, name: bytes = NAME) -> int:
    return asyncio.run(kept.offset(sender, name, lambda: now))


def test_one_beginning_is_kept_for_each_sender_and_only_for_a_while() -> None:
    kept, model = PartialTransfers(120.0, 1 << 30), model_of(LAYOUT)
    assert keep(kept, "a", begun(model, 3))
    assert keep(kept, "a", begun(model, 5, name=b"f" * 16), now=10.0)
    assert offset(kept, "a") == 0
    assert offset(kept, "a", 129.0, b"f" * 16) == 5 << 18
    assert offset(kept, "b", 129.0, b"f" * 16) == 0
    assert offset(kept, "a", 130.0, b"f" * 16) == 0
    assert len(kept) == 0


def test_beginnings_are_limited_in_bytes_and_number_and_the_oldest_go_first() -> None:
    model = model_of(LAYOUT)
    few = PartialTransfers(120.0, 2 * LAYOUT.nbytes)
    for sender in "abc":
        assert keep(few, sender, begun(model, 3))
    assert (offset(few, "a"), len(few)) == (0, 2)
    single = PartialTransfers(120.0, 1)
    assert keep(single, "a", begun(model, 3))
    many, small = PartialTransfers(120.0, 1 << 40), model_of(layout_of(100_000))
    for number in range(MOST + 5):
        keep(many, f"{number}", begun(small, 1))
    assert len(many) == MOST


def test_what_cannot_or_need_not_continue_is_not_kept() -> None:
    model = model_of(LAYOUT)
    kept = PartialTransfers(120.0, 1 << 30)
    assert not keep(kept, "a", begun(model, 3, name=b""))
    assert not keep(kept, "a", begun(model, 3, name=b"short"))
    assert not keep(kept, "a", begun(model, 1000))  # complete
    little = begun(model_of(layout_of(LEAST // 8)), 0)
    assert not keep(kept, "a", little)
    failed = begun(model, 3)
    with pytest.raises(Refused):
        failed.take(parse(frame(None, np.full(4, np.nan, np.float32).data.cast("B"), None)))
    assert not keep(kept, "a", failed)
    assert not keep(PartialTransfers(0.0, 1 << 30), "a", begun(model, 3))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 17}, Reason.TRUNCATED),
        ({"offset": 1 << 63}, Reason.TRUNCATED),
        ({"encoding": 2}, Reason.GARBAGE),
        ({"zstd": True}, Reason.GARBAGE),
        ({"encoded_size": 5}, Reason.GARBAGE),
        ({"layout": "0" * 32}, Reason.GARBAGE),
        ({"numbers": 1 << 40}, Reason.GARBAGE),
    ],
    ids=str,
)
def test_a_stream_that_does_not_continue_the_one_that_broke_off_is_refused(
    change: dict[str, Any], reason: Reason
) -> None:
    model, kept = model_of(LAYOUT), PartialTransfers(120.0, 1 << 30)
    keep(kept, ANN, begun(model, 3))
    chunk, envelope = read_header(stream_of(model, 3 << 18)[0])
    assert chunk.header
    for field, value in change.items():
        setattr(chunk.header, field, value)
    with pytest.raises(Refused) as refused:
        kept.decoder(chunk, envelope, LAYOUT, 0.0)
    assert refused.value.reason is reason
    assert len(kept) == 0


def test_the_checksum_covers_what_came_before_the_break() -> None:
    model, other, kept = model_of(LAYOUT), model_of(LAYOUT, seed=5), PartialTransfers(120.0, 1 << 30)
    keep(kept, ANN, begun(other, 3))
    first, *rest = stream_of(model, 3 << 18)
    chunk, envelope = read_header(first)
    decoder = kept.decoder(chunk, envelope, LAYOUT, 0.0)
    decoder.take(chunk)
    *middle, last = rest
    for message in middle:
        decoder.take(parse(message))
    with pytest.raises(Refused) as refused:
        decoder.take(parse(last))
    assert refused.value.reason is Reason.CHECKSUM


def test_an_offset_without_a_beginning_allocates_nothing_and_is_refused() -> None:
    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        async with raw_channel(proxy.address) as channel:
            send: Any = channel.stream_unary("/pfl.v1.Peer/SendModel")  # type: ignore[call-arg]
            with pytest.raises(grpc.aio.AioRpcError):
                await send(iter(stream_of(model_of(LAYOUT), 3 << 18)))
        await host.counted("SendModel", "truncated")
        assert host.cancelled == 1

    play(scene)


def test_a_stream_whose_connection_hangs_is_taken_over_by_the_next() -> None:
    """The sender is back on another connection, and the receiver has not noticed that the first is dead."""
    model = model_of(LAYOUT)

    async def scene(host: FakeHost, proxy: NodeProxy, client: PeerClient) -> None:
        async with raw_channel(proxy.address) as channel:
            send: Any = channel.stream_unary("/pfl.v1.Peer/SendModel")  # type: ignore[call-arg]
            ask: Any = channel.unary_unary("/pfl.v1.Peer/GetOffset")  # type: ignore[call-arg]
            hanging = send()
            for message in stream_of(model)[:4]:
                await hanging.write(message)
            request = pb.OffsetRequest(sender=ANN, run=RUN, content=NAME).SerializeToString()
            while (here := pb.Offset.FromString(await ask(request)).bytes) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await send(iter(stream_of(model, here)))
        assert host.counts["SendModel", "ok"] == host.counts["SendModel", "truncated"] == 1
        assert host.mailbox.take(1)[0].model.vector.tobytes() == model.vector.tobytes()

    play(scene)
