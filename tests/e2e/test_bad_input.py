"""What no peer may do to a whole node that trains: each is answered with a precise status, counted, and survived.

Two pairs of real nodes learn together all the while, one in rounds (`el`), one by pushes (`gossip`); `bob` of each
pair is attacked. The codec's own tests (tests/unit/wire) are about bytes; these are about the node behind them.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import grpc
import numpy as np
import pytest
import zstandard

from pfl_node.errors import Reason, Refused
from pfl_node.learning.trainer import TrainerThread
from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import encode
from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.framing import MAX_HEADER
from pfl_node.wire.statuses import REASON_KEY, STATUS
from tests.e2e.in_process import Life, Town

T = TypeVar("T")
Code = grpc.StatusCode
EVE, CARL = PeerId("eve"), PeerId("carl")  # a liar and an honest stranger
PEER = "/pfl.v1.Peer/"
CALLS = 100  # a minute, of one peer
POLICIES: dict[str, dict[str, Any]] = {
    "el": {"name": "el"},
    "gossip": {"name": "gossip", "n_peers": 2, "delta": 0.05, "quiet": 0.5},
}


class Answer(NamedTuple):
    """How a call ended: the status, our reason for it, the words."""

    code: grpc.StatusCode
    reason: str = ""
    text: str = ""


class AttackedPair:
    """One pair of nodes, and eve with a raw channel to bob."""

    def __init__(self, ann: Life, bob: Life) -> None:
        self.ann = ann
        self.bob = bob
        bob.node.host.member = lambda _: True  # eve and carl count as members
        self.channel: Any = grpc.aio.insecure_channel(bob.address, options=channel_options())
        self.carl = PeerClient(CARL, bob.node.settings.run, WireSettings())

    async def begins(self) -> None:
        await self.bob.until(lambda: self.bob.node.host.received)

    async def close(self) -> None:
        await self.carl.close()
        await self.channel.close()

    # -- what eve does -------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        assert self.bob.node.policy
        return self.bob.node.policy.model

    @property
    def soon(self) -> int | None:
        """A round that is not over when a message arrives; a push has none."""
        return self.bob.round + 12 if self.bob.node.plan.policy.lockstep else None

    def chunk(self, model: Model | None = None, wire: WireSettings | None = None, **header: Any) -> pb.ModelChunk:
        """A model of eve's in one message; its header says what it should not."""
        envelope = Envelope(EVE, self.bob.node.settings.run, round=self.soon)
        made = pb.ModelChunk.FromString(next(encode(model or self.model, envelope, wire or WireSettings())))
        for name, value in header.items():
            setattr(made.header, name, value)
        return made

    async def answer(self, call: Any) -> Answer:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            metadata: Any = error.trailing_metadata() or ()
            return Answer(error.code(), str(dict(metadata).get(REASON_KEY, "")), error.details() or "")
        return Answer(Code.OK)

    async def send(self, *messages: bytes, call: str = "SendModel") -> Answer:
        return await self.answer(self.channel.stream_unary(PEER + call)(iter(messages), timeout=30))

    async def get(self, call: str, request: bytes) -> Answer:
        async def read() -> None:
            async for _ in self.channel.unary_stream(PEER + call)(request, timeout=30):
                pass

        return await self.answer(read())

    # -- how bob is ----------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        found = await self.carl.status(self.bob.address)
        return {"round": found.round, "state": found.state, **json.loads(found.json)}

    async def refused(self) -> Counter[str]:
        return Counter((await self.status())["refused"])

    async def gained(self, before: Counter[str]) -> dict[str, int]:
        """Refusals since then, by reason. Pushes of ann's that came while he was busy are not eve's doing."""
        gained = await self.refused() - before
        if not self.bob.node.plan.policy.lockstep:
            del gained["flood"]
        return dict(gained)

    async def is_well(self) -> None:
        """He trains, takes a good model of a stranger, and has taken all that ann sent."""
        await self.carl.send(self.bob.node.id, self.bob.address, self.model, round=self.soon)
        await self.bob.rounds()
        sent = self.ann.node.client.traffic.models[self.bob.node.id, "out"]
        status = await self.status()
        assert status["state"] == "training"
        assert status["round"] >= 1
        assert self.ann.node.recorder
        assert set(self.ann.node.recorder.failures) <= {("SendModel", "flood")}  # he may be busy, and says so
        assert status["models_received"][self.ann.node.id] >= sent


@dataclass(frozen=True, slots=True)
class SharedLoop:
    """One event loop for the whole module; the nodes live in it from test to test."""

    runner: asyncio.Runner
    sieges: dict[str, AttackedPair]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLoop]:
    town = Town(tmp_path_factory.mktemp("town"), TrainerThread())

    async def begin() -> dict[str, AttackedPair]:
        sieges = {}
        for name, policy in POLICIES.items():
            serve = {"scores_per_minute": CALLS, "fetches_per_minute": CALLS}
            common = {"policy": policy, "run": name, "serve": serve, "start": {"wait": 30}}
            bob = await town.runs(f"bob-{name}", **common)
            ann = await town.runs(f"ann-{name}", peer_seed=[bob.address], **common)
            for life in (ann, bob):  # these policies use neither, but the calls must be safe with any
                life.node.host._scores = True
                life.node.host.window._serves = Policy.serves
            sieges[name] = siege = AttackedPair(ann, bob)
            await siege.begins()
        return sieges

    async def end(sieges: dict[str, AttackedPair]) -> None:
        for siege in sieges.values():
            await siege.close()
            assert [await siege.ann.stops(), await siege.bob.stops()] == ["stopped", "stopped"]
            assert siege.bob.journal[-1]["event"] == "finished"
        await town.close()

    with asyncio.Runner() as runner:
        made = SharedLoop(runner, runner.run(begin()))
        yield made
        runner.run(end(made.sieges))


# -- models that must not be taken -----------------------------------------------------------------------------


def not_finite(siege: AttackedPair, value: float) -> bytes:
    vector = siege.model.vector.copy()
    vector[123] = value
    return siege.chunk(Model(siege.model.layout, vector)).SerializeToString()


def cut(siege: AttackedPair) -> bytes:
    """The stream ends before the trailer."""
    made = siege.chunk()
    made.ClearField("trailer")
    return made.SerializeToString()


def with_data(made: pb.ModelChunk, change: Callable[[bytes], bytes]) -> bytes:
    made.data = change(made.data)
    return made.SerializeToString()


def flipped(data: bytes) -> bytes:
    return data[:99] + bytes((data[99] ^ 1,)) + data[100:]


@cache
def bomb() -> bytes:
    params = zstandard.ZstdCompressionParameters.from_level(19, window_log=20)
    return zstandard.ZstdCompressor(compression_params=params).compress(bytes(256 << 20))


def noted(siege: AttackedPair, value: float) -> bytes:
    made = siege.chunk()
    made.header.notes["x"] = value
    return made.SerializeToString()


def header(**said: Any) -> Callable[[AttackedPair], bytes]:
    return lambda siege: siege.chunk(**said).SerializeToString()


MODELS: dict[str, tuple[Callable[[AttackedPair], bytes], Reason]] = {
    "garbage bytes": (lambda _: random.Random(1).randbytes(5000), Reason.GARBAGE),
    "an empty message": (lambda _: b"", Reason.GARBAGE),
    "another version": (header(version=9), Reason.VERSION),
    "a truncated stream": (cut, Reason.TRUNCATED),
    "half a payload": (lambda s: with_data(s.chunk(), lambda d: d[: len(d) // 2]), Reason.TRUNCATED),
    "another layout": (header(layout="0" * 32), Reason.LAYOUT),
    "a head where a model belongs": (lambda s: s.chunk(s.model.head).SerializeToString(), Reason.LAYOUT),
    "a core where a model belongs": (lambda s: s.chunk(s.model.core).SerializeToString(), Reason.LAYOUT),
    "a NaN": (lambda s: not_finite(s, np.nan), Reason.NOT_FINITE),
    "an infinity": (lambda s: not_finite(s, np.inf), Reason.NOT_FINITE),
    "a note that is no number": (lambda s: noted(s, np.nan), Reason.NOT_FINITE),
    "too many numbers": (header(numbers=1 << 40), Reason.TOO_LARGE),
    "too many bytes promised": (header(encoded_size=1 << 50), Reason.TOO_LARGE),
    "more bytes than promised": (lambda s: with_data(s.chunk(), lambda d: d + d), Reason.TOO_LARGE),
    "a huge header": (header(run="r" * MAX_HEADER), Reason.TOO_LARGE),
    "a decompression bomb": (
        lambda s: with_data(s.chunk(zstd=True, encoded_size=0), lambda _: bomb()),
        Reason.BOMB,
    ),
    "a changed byte": (lambda s: with_data(s.chunk(), flipped), Reason.CHECKSUM),
    "an unknown run": (header(run="elsewhere"), Reason.UNKNOWN_RUN),
    "nobody as the sender": (header(sender=""), Reason.UNKNOWN_PEER),
    "the receiver as the sender": (lambda s: header(sender=s.bob.node.id)(s), Reason.UNKNOWN_PEER),
    "a name without end": (header(sender="e" * 5000), Reason.UNKNOWN_PEER),
}
ROUNDS: dict[str, tuple[Callable[[AttackedPair], bytes], Reason]] = {
    "a stale round": (header(round=0), Reason.STALE_ROUND),
    "a round before the first": (header(round=-5), Reason.STALE_ROUND),
    "a future round": (header(round=1 << 60), Reason.FUTURE_ROUND),
}

every_pair = pytest.mark.parametrize("pair", POLICIES)


async def attack(
    siege: AttackedPair, make: Callable[[AttackedPair], bytes], reason: Reason, call: str = "SendModel"
) -> None:
    before = await siege.refused()
    for _ in range(3):
        said = await siege.send(make(siege), call=call)
        assert (said.code, said.reason) == (STATUS[reason], reason), said.text
    assert await siege.gained(before) == {reason: 3}
    await siege.is_well()


@every_pair
@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model_is_refused_counted_and_survived(front: SharedLoop, pair: str, name: str) -> None:
    make, reason = MODELS[name]
    siege = front.sieges[pair]
    front.run(attack(siege, make, reason))


@pytest.mark.parametrize("name", ROUNDS)
def test_a_model_of_a_round_that_is_over_or_far_away_is_refused(front: SharedLoop, name: str) -> None:
    make, reason = ROUNDS[name]
    siege = front.sieges["el"]
    front.run(attack(siege, make, reason))


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model_is_not_evaluated_either(front: SharedLoop, name: str) -> None:
    make, reason = MODELS[name]
    siege = front.sieges["el"]
    front.run(attack(siege, make, reason, "EvaluateModel"))


# -- calls that are none -----------------------------------------------------------------------------------------


@every_pair
@pytest.mark.parametrize("call", ["SendModel", "EvaluateModel"])
def test_a_call_without_any_message_is_truncated(front: SharedLoop, pair: str, call: str) -> None:
    async def go(siege: AttackedPair) -> None:
        before = await siege.refused()
        said = await siege.send(call=call)
        assert (said.code, said.reason) == (Code.INVALID_ARGUMENT, Reason.TRUNCATED)
        assert await siege.gained(before) == {"truncated": 1}
        await siege.is_well()

    front.run(go(front.sieges[pair]))


def test_a_model_that_is_broken_off_is_counted_and_gives_its_place_back(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        bob, host = siege.bob, siege.bob.node.host

        def on_its_way() -> bool:
            return EVE in repr(bob.node.mailbox._in_flight)

        before = await siege.refused()
        for _ in range(4):  # more than may wait of one peer
            call = siege.channel.stream_unary(PEER + "SendModel")()
            await call.write(cut(siege))
            await bob.until(on_its_way)
            call.cancel()
            await bob.until(lambda: not on_its_way())
        await bob.until(lambda: host.refused["truncated"] == before["truncated"] + 4)
        assert (await siege.send(siege.chunk().SerializeToString())).code is Code.OK
        await siege.is_well()

    front.run(go(front.sieges["gossip"]))


@pytest.mark.parametrize("call", ["GetHead", "GetModel"])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"run": "elsewhere"}, Reason.UNKNOWN_RUN),
        ({"sender": ""}, Reason.UNKNOWN_PEER),
        ({"sender": "e" * 5000}, Reason.UNKNOWN_PEER),
        ({"layout": "0" * 32}, Reason.LAYOUT),
    ],
)
def test_a_bad_request_for_a_model_is_refused(
    front: SharedLoop, call: str, said: dict[str, Any], reason: Reason
) -> None:
    async def go(siege: AttackedPair) -> None:
        before = await siege.refused()
        request = pb.ModelRequest(**{"sender": EVE, "run": siege.bob.node.settings.run, **said})
        answer = await siege.get(call, request.SerializeToString())
        assert (answer.code, answer.reason) == (STATUS[reason], reason)
        assert await siege.gained(before) == {reason: 1}
        await siege.is_well()

    front.run(go(front.sieges["el"]))


@pytest.mark.parametrize("call", ["GetHead", "GetModel", "GetStatus"])
def test_garbage_instead_of_a_request_is_refused(front: SharedLoop, call: str) -> None:
    async def go(siege: AttackedPair) -> None:
        before = await siege.refused()
        answer = await siege.get(call, b"\xff\xff\xff")
        assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, Reason.GARBAGE)
        assert await siege.gained(before) == {"garbage": 1}
        await siege.is_well()

    front.run(go(front.sieges["el"]))


@pytest.mark.parametrize("call", ["Join", "Ping", "PingReq", "Sync", "Leave", "List"])
def test_garbage_instead_of_news_of_the_membership_is_refused(front: SharedLoop, call: str) -> None:
    async def go(siege: AttackedPair) -> None:
        before = (await siege.status())["membership"].get("garbage", 0)
        said = siege.channel.unary_unary(f"/pfl.v2.Membership/{call}")(b"\xff\xff\xff", timeout=30)
        assert (await siege.answer(said)).code is Code.INVALID_ARGUMENT
        assert (await siege.status())["membership"]["garbage"] == before + 1
        await siege.is_well()

    front.run(go(front.sieges["el"]))


def test_a_method_or_a_service_that_does_not_exist_is_unimplemented(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        assert (await siege.send(b"x", call="BurnModel")).code is Code.UNIMPLEMENTED
        elsewhere = siege.channel.unary_unary("/pfl.v9.Other/Call")(b"", timeout=30)
        assert (await siege.answer(elsewhere)).code is Code.UNIMPLEMENTED
        await siege.is_well()

    front.run(go(front.sieges["el"]))


def test_a_message_larger_than_any_chunk_ends_in_grpc_itself(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(siege.bob.address, options=options) as channel:
            send: Any = channel.stream_unary(PEER + "SendModel")  # type: ignore[call-arg]
            answer = await siege.answer(send(iter([bytes(32 << 20)]), timeout=30))
        assert answer.code is Code.RESOURCE_EXHAUSTED
        await siege.is_well()

    front.run(go(front.sieges["el"]))


# -- too much ----------------------------------------------------------------------------------------------------


def split(answers: list[Answer]) -> tuple[int, list[Answer]]:
    """How many were taken, and the refusals."""
    refusals = [a for a in answers if a.code is not Code.OK]
    return len(answers) - len(refusals), refusals


def test_a_flood_from_one_peer_is_refused_and_what_was_taken_of_it_is_used(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        before = await siege.refused()
        message = siege.chunk(sender="flooder").SerializeToString()
        taken, refusals = split(await asyncio.gather(*(siege.send(message) for _ in range(40))))
        assert {(a.code, a.reason) for a in refusals} == {(Code.RESOURCE_EXHAUSTED, Reason.FLOOD)}
        assert (await siege.refused() - before)["flood"] >= len(refusals)
        await siege.is_well()
        await siege.bob.until(lambda: merged(siege.bob, "flooder") == taken)

    front.run(go(front.sieges["gossip"]))


def merged(bob: Life, sender: str) -> int:
    """How many models of this sender his policy has used."""
    return sum(list(row["from"]).count(sender) for row in bob.rows("round"))


def test_models_that_nobody_takes_do_not_pile_up(front: SharedLoop) -> None:
    """`el` has no use for a model without a round; an inbox must not be a way to fill a node's memory."""

    async def go(siege: AttackedPair) -> None:
        bob = siege.bob.node
        message = siege.chunk(sender="flooder")
        message.header.ClearField("round")
        taken, refusals = split([await siege.send(message.SerializeToString()) for _ in range(10)])
        assert (taken, {a.reason for a in refusals}) == (bob.settings.serve.per_peer, {Reason.FLOOD})
        for n in range(bob.settings.serve.inbox):
            message.header.sender = f"flooder-{n}"
            answer = await siege.send(message.SerializeToString())
        assert answer.reason == Reason.FLOOD
        assert len(bob.mailbox) == bob.settings.serve.inbox
        await siege.is_well()

    front.run(go(front.sieges["el"]))


def test_a_peer_that_asks_too_often_is_refused_and_others_are_still_served(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        before = await siege.refused()
        message = siege.chunk(sender="asker").SerializeToString()
        answers = [await siege.send(message, call="EvaluateModel") for _ in range(CALLS + 5)]
        taken, refusals = split(answers)
        assert (taken, {(a.code, a.reason) for a in refusals}) == (
            CALLS,
            {(Code.RESOURCE_EXHAUSTED, Reason.FLOOD)},
        )
        assert await siege.gained(before) == {"flood": 5}
        score = await siege.carl.evaluate(siege.bob.node.id, siege.bob.address, siege.model)
        assert score.samples == 40
        await siege.is_well()

    front.run(go(front.sieges["el"]))


# -- below gRPC --------------------------------------------------------------------------------------------------


def test_garbage_over_tcp_is_survived(front: SharedLoop) -> None:
    async def go(siege: AttackedPair) -> None:
        host, port = siege.bob.address.rsplit(":", 1)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", random.Random(2).randbytes(70_000), b"PRI * HTTP/2.0\r\n", b""):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            if garbage:
                await asyncio.wait((asyncio.create_task(reader.read()),), timeout=0.2)
            writer.close()
        await siege.is_well()

    front.run(go(front.sieges["el"]))


@every_pair
def test_garbage_over_udp_is_counted_and_makes_nobody_a_suspect(front: SharedLoop, pair: str) -> None:
    async def go(siege: AttackedPair) -> None:
        bob, chance = siege.bob.node, random.Random(3)
        before = (await siege.status())["membership"].get("garbage", 0)
        packets = [b"", b"\x00", b"\xff" * 1400, *(chance.randbytes(n) for n in (7, 64, 512, 9000))]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for packet in packets:
                udp.sendto(packet, ("127.0.0.1", bob.endpoint.port))
        await siege.bob.until(lambda: bob.membership.counters["garbage"] >= before + len(packets) - 1)
        assert [str(m.state) for m in bob.membership.members()] == ["alive", "alive"]
        assert (await siege.status())["membership"]["garbage"] > before
        await siege.is_well()

    front.run(go(front.sieges[pair]))


# -- and then ----------------------------------------------------------------------------------------------------


@every_pair
def test_after_all_that_the_good_models_of_a_stranger_are_still_taken_and_used(
    front: SharedLoop, pair: str
) -> None:
    async def go(siege: AttackedPair) -> None:
        bob = siege.bob
        for make, reason in MODELS.values():
            assert (await siege.send(make(siege))).reason == reason
        before = merged(bob, CARL) if pair == "gossip" else 0
        for _ in range(4):
            await siege.carl.send(bob.node.id, bob.address, siege.model, round=siege.soon)
            await bob.rounds()
        if pair == "gossip":
            await bob.until(lambda: merged(bob, CARL) == before + 4)
        with pytest.raises(Refused):
            await siege.carl.send(bob.node.id, bob.address, siege.model.head)
        assert {reason for _, reason in MODELS.values()} <= (await siege.refused()).keys()
        await siege.is_well()

    front.run(go(front.sieges[pair]))
