"""Fail points at work: what a node does when a message, a merge, a training or a goodbye is lost on purpose."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.node.learn import LearningSteps
from pfl_node.steps import Average
from tests.arm_failpoints import failing
from tests.e2e.in_process import Life, Town, play
from tests.toy import constant
from tests.unit.wire.small_host import ANN, BOB, FakeHost, calling, layout_of, model_of, serving

LAYOUT = layout_of(1000)
LOCAL, EL = {"name": "local"}, {"name": "el", "degree": 1}


async def send(host: FakeHost, points: str) -> None:
    with failing(points):
        async with serving(host) as address, calling() as client:
            await client.send(BOB, address, model_of(LAYOUT), round=0)


def test_a_model_that_is_not_sent_does_not_arrive_and_the_peer_seems_gone() -> None:
    async def scenario() -> None:
        host = FakeHost(LAYOUT)
        with pytest.raises(PeerGone, match="not sent"):
            await send(host, "send.before=return")
        assert host.admitted == 0

    asyncio.run(scenario())


def test_a_receipt_that_is_lost_belongs_to_a_model_that_arrived() -> None:
    async def scenario() -> None:
        host = FakeHost(LAYOUT)
        with pytest.raises(PeerGone, match="its receipt was lost"):
            await send(host, "send.after=return")
        assert len(host.mailbox.collect([ANN], 0)) == 1

    asyncio.run(scenario())


def test_a_model_that_is_thrown_away_on_arrival_is_refused_and_may_be_sent_again() -> None:
    async def scenario() -> None:
        host = FakeHost(LAYOUT)
        with pytest.raises(Refused) as caught:
            await send(host, "receive=return")
        assert caught.value.reason is Reason.TRUNCATED
        assert (host.admitted, host.cancelled) == (1, 1)
        await send(host, "")
        assert len(host.mailbox.collect([ANN], 0)) == 1

    asyncio.run(scenario())


def test_without_a_merge_the_own_model_stays() -> None:
    nobody: Any = SimpleNamespace()
    with failing("merge=return"):
        answer = asyncio.run(LearningSteps(nobody, nobody).answer(Average(constant(1.0), [constant(3.0)])))
    assert answer == constant(1.0)


def test_without_training_nothing_is_learnt(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        with failing("train=return"):
            life = await town.runs("n", policy=LOCAL, rounds=3)
            assert await life.ends() == "done"
        assert len({row["val_loss"] for row in life.rows("round")}) == 1

    play(tmp_path, scene)


def state_of(seen_by: Life, other: Life) -> str:
    return {m.id: str(m.state) for m in seen_by.node.membership.members()}.get(other.node.id, "unknown")


def test_a_node_that_admits_nothing_and_goes_without_a_word_is_dead_for_the_others_who_go_on(
    tmp_path: Path,
) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await bob.rounds(1)
        with failing("admit=return;leave=return"):
            recorder = ann.node.recorder
            assert recorder
            await ann.until(lambda: recorder.failures["SendModel", "flood"] > 0)
            assert await bob.stops() == "stopped"
            await bob.close()
        await ann.until(lambda: state_of(ann, bob) == "dead")
        await ann.rounds(2)

    play(tmp_path, scene)
