"""Nodes that are fired at while they learn: some messages by default, a hundred thousand among the slow tests."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.in_process import Life, Town, play
from tests.fuzz.__main__ import main
from tests.fuzz.address_filter import AddressFilter
from tests.fuzz.batch import Batch, cases_of
from tests.fuzz.cases import CaseGenerator
from tests.fuzz.findings import Findings
from tests.fuzz.recording_member import recorded
from tests.fuzz.sender import Sender
from tests.fuzz.surface import surface_of

RUN = "fuzz"
MESSAGES = 2000


async def prepared(bob: Life, ann: Life, seed: int) -> CaseGenerator:
    surface = await asyncio.to_thread(surface_of, bob.address)
    corpus = await recorded(bob.address, surface, RUN, bob.round)
    return CaseGenerator(seed, corpus, AddressFilter([bob.address, ann.address]), bob.address)


def test_two_nodes_learn_on_while_one_is_sent_nonsense(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every call, the UDP port and bare connections; each bad message gets a precise status."""
    unhandled: list[dict[str, Any]] = []
    findings = Findings(seed=1)

    async def scene(town: Town) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        quick = {"run": RUN, "policy": {"name": "el"}, "round": {"patience": 0.5}, "start": {"wait": 30}}
        bob = await town.runs("bob", **quick)
        ann = await town.runs("ann", peer_seed=[bob.address], **quick)
        await bob.until(lambda: bob.node.host.received)
        generator = await prepared(bob, ann, findings.seed)
        before = bob.round

        async def asked() -> None:
            await asyncio.sleep(0)
            generator.corpus.round = bob.round

        async with Sender(bob.address) as sender:
            await Batch(sender, findings, asked).send_all(cases_of(generator, range(MESSAGES)))
        assert bob.round > before
        await bob.rounds(2)
        assert [outcome for _, outcome in bob.node.host.calls if outcome == "internal"] == []
        assert bob.node.host.refused["garbage"] > 0
        assert bob.node.membership.counters["garbage"] > 0

    play(tmp_path, scene)
    assert findings.findings == []
    assert findings.messages == MESSAGES
    assert unhandled == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["el", "gossip"])
def test_a_daemon_bears_a_hundred_thousand_messages(policy: str) -> None:
    assert main(["--messages", "100000", "--policy", policy]) == 0
