"""A stream that comes to any harm on its way: either the same model comes out, bit by bit, or a refusal says why.

A state machine: hypothesis harms a real stream step by step and hands it to the real receiving end when it likes.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pfl_node.errors import Reason
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Offer
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.codec import decode, encode
from pfl_node.wire.server import PeerService
from pfl_node.wire.statuses import REASON_KEY, STATUS
from tests.unit.wire.small_host import ANN, RUN, FakeHost, layout_of, model_of
from tests.unit.wire.test_codec import recut

LAYOUT = layout_of(2500, 40)
SPARE = 400_000  # bytes that a message may take besides the model and itself: a step of zstd, objects

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]

places = st.integers(0, 99)
seeds = st.integers(0, 3)
cuts = st.lists(places, max_size=4)
wires = st.builds(
    WireSettings,
    encoding=st.sampled_from(["fp32", "fp16", "int8"]),
    zstd=st.sampled_from([0, 0, 1]),
    chunk=st.just(4096),
)
envelopes = st.builds(
    Envelope, st.just(ANN), st.just(RUN), st.sampled_from([None, 0, 3]), notes=st.sampled_from([{}, {"x": 1.0}])
)


class Aborted(Exception):
    """As gRPC ends a handler that gives up its call."""


class Context:
    """What gRPC hands to a handler: the messages one by one, and a way to say no."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)
        self.said: tuple[grpc.StatusCode, str] | None = None

    async def read(self) -> Any:
        return next(self._messages, EOF)

    async def abort(self, code: grpc.StatusCode, text: str, trailing_metadata: Any) -> None:
        assert text
        self.said = code, dict(trailing_metadata)[REASON_KEY]
        raise Aborted


class Keeper(FakeHost):
    """Bob's node, which shows what it took."""

    def __init__(self) -> None:
        super().__init__(LAYOUT)
        self.came: list[Offer] = []

    def deliver(self, offer: Offer) -> None:
        super().deliver(offer)
        self.came.append(offer)


class Streams(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.host = Keeper()
        self.service = PeerService(self.host)
        self.peak = 0
        tracemalloc.start()

    def teardown(self) -> None:
        tracemalloc.stop()
        self.runner.close()

    @initialize(how=wires, seed=seeds, envelope=envelopes, cuts=cuts)
    def begin(self, how: WireSettings, seed: int, envelope: Envelope, cuts: list[int]) -> None:
        self._begin(how, seed, envelope, cuts)

    @rule(how=wires, seed=seeds, envelope=envelopes, cuts=cuts)
    def another(self, how: WireSettings, seed: int, envelope: Envelope, cuts: list[int]) -> None:
        self._begin(how, seed, envelope, cuts)

    def _begin(self, how: WireSettings, seed: int, envelope: Envelope, cuts: list[int]) -> None:
        """A new stream, as any client may cut it."""
        whole = list(encode(model_of(LAYOUT, seed), envelope, how))
        self.truth = decode(whole, LAYOUT).model
        self.messages = recut(whole, [cut * 131 for cut in cuts]) if cuts else whole
        self.harmed = False

    # -- what may happen to it -----------------------------------------------------------------------------

    @rule(at=places)
    def lose(self, at: int) -> None:
        if self.messages:
            del self.messages[at % len(self.messages)]
            self.harmed = True

    @rule(at=places, to=places)
    def double(self, at: int, to: int) -> None:
        if self.messages:
            self.messages.insert(to % (len(self.messages) + 1), self.messages[at % len(self.messages)])
            self.harmed = True

    @rule(at=places, to=places)
    def swap(self, at: int, to: int) -> None:
        if self.messages:
            at, to = at % len(self.messages), to % len(self.messages)
            self.messages[at], self.messages[to] = self.messages[to], self.messages[at]
            self.harmed = True

    @rule(at=places, keep=st.integers(0, 20_000))
    def truncate(self, at: int, keep: int) -> None:
        self._change(at, lambda data: data[: keep % (len(data) + 1)])

    @rule(at=places, byte=st.integers(0, 20_000), bit=st.integers(0, 7))
    def flip(self, at: int, byte: int, bit: int) -> None:
        def flipped(data: bytes) -> bytes:
            place = byte % len(data)
            return data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :]

        self._change(at, lambda data: flipped(data) if data else data)

    @rule(at=places, noise=st.binary(max_size=40))
    def prolong(self, at: int, noise: bytes) -> None:
        self._change(at, lambda data: data + noise)

    @rule(at=places)
    def join(self, at: int) -> None:
        """Two messages in one: protobuf reads that as one message, in which the later data counts."""
        if len(self.messages) > 1:
            at %= len(self.messages) - 1
            self.messages[at : at + 2] = [self.messages[at] + self.messages[at + 1]]
            self.harmed = True

    @rule(at=places, part=st.sampled_from(["header", "data", "trailer"]))
    def strip(self, at: int, part: str) -> None:
        def stripped(data: bytes) -> bytes:
            try:
                chunk = pb.ModelChunk.FromString(data)
            except Exception:
                return data
            chunk.ClearField(part)
            return chunk.SerializeToString()

        self._change(at, stripped)

    @rule(at=places, how=wires, seed=seeds, envelope=envelopes)
    def splice(self, at: int, how: WireSettings, seed: int, envelope: Envelope) -> None:
        """It goes on as another stream does."""
        other = list(encode(model_of(LAYOUT, seed), envelope, how))
        self.messages = [*self.messages[: at % (len(self.messages) + 1)], *other]
        self.harmed = True

    def _change(self, at: int, change: Any) -> None:
        if self.messages:
            self.messages[at % len(self.messages)] = change(self.messages[at % len(self.messages)])
            self.harmed = True

    # -- and then it arrives -------------------------------------------------------------------------------

    @rule()
    def arrive(self) -> None:
        host, context = self.host, Context(self.messages)
        host.mailbox, host.came = Mailbox(), []
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            receipt = self.runner.run(self.service._send_model(None, context))
        except Aborted:
            receipt = None
        self.peak = tracemalloc.get_traced_memory()[1] - before
        if receipt is None:
            assert self.harmed, f"a stream that is as it was is refused: {context.said}"
            assert context.said is not None
            code, reason = context.said
            assert code is STATUS[Reason(reason)]
            assert not host.came
        else:
            self._is_the_same(host.came)

    def _is_the_same(self, came: list[Offer]) -> None:
        (offer,) = came
        known = [self.truth] if not self.harmed else [self.truth, *self._others()]
        assert any(offer.model.vector.tobytes() == model.vector.tobytes() for model in known)

    def _others(self) -> list[Any]:
        """A splice may have put a whole other stream into the place of this one."""
        found = []
        for encoding in ("fp32", "fp16", "int8"):
            for seed in range(4):
                how = WireSettings(encoding=encoding)
                found.append(decode(encode(model_of(LAYOUT, seed), Envelope(ANN, RUN), how), LAYOUT).model)
        return found

    @invariant()
    def everything_admitted_has_ended(self) -> None:
        host = self.host
        assert host.counts["SendModel", "internal"] == 0
        assert not host.mailbox._in_flight
        assert host.mailbox.size == sum(offer.nbytes for offer in host.came)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.peak <= 2 * LAYOUT.nbytes + 4 * max((len(m) for m in self.messages), default=0) + SPARE


def test_a_stream_comes_out_as_it_was_or_is_refused() -> None:
    run_state_machine_as_test(Streams, settings=settings(max_examples=40, stateful_step_count=12))


@pytest.mark.slow
def test_many_streams_come_out_as_they_were_or_are_refused() -> None:
    long = settings(max_examples=5000, stateful_step_count=30, derandomize=False)
    run_state_machine_as_test(Streams, settings=long)
