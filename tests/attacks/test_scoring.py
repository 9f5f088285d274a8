"""Members, and strangers, that let a node work for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.protocol.rate_limit import BURST, EffortLimit
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import encode
from tests.attacks.conftest import Figure
from tests.e2e.in_process import Life, Town, play
from tests.e2e.processes import processes

SECONDS = 12.0


class Measured(EffortLimit):
    """Also keeps how long each scoring took."""

    def __init__(self, most: float) -> None:
        super().__init__(most)
        self.spent: list[float] = []

    def done(self, peer: PeerId, seconds: float, now: float) -> None:
        super().done(peer, seconds, now)
        self.spent.append(seconds)


async def rounds_per_minute(life: Life, seconds: float) -> float:
    before = life.round
    await asyncio.sleep(seconds)
    return (life.round - before) * 60 / seconds


def messages(life: Life, folder: Path, attackers: int) -> Iterator[Path]:
    """One EvaluateModel message for each attacker, as a file."""
    assert life.node.policy
    for n in range(attackers):
        envelope = Envelope(PeerId(f"member-{n}"), life.node.settings.run)
        file = folder / f"attacker-{n}"
        file.write_bytes(b"".join(encode(life.node.policy.model, envelope, WireSettings())))
        yield file


@pytest.mark.attacks
@pytest.mark.parametrize("attackers", [1, 2, 8])
def test_scoring_for_any_number_of_members_takes_a_third_of_the_time(
    tmp_path: Path, figure: Figure, attackers: int
) -> None:
    async def scene(town: Town) -> None:
        life = await town.runs(
            "n", policy={"name": "local"}, task={"samples": 500, "model": "cnn"}, eval={"every": 1000}
        )
        await life.trains()
        life.node.host.member = lambda _: True
        life.node.host._effort = Measured(life.node.settings.serve.scoring)
        spent = life.node.host._effort.spent
        quiet = await rounds_per_minute(life, SECONDS / 2)
        with processes(tmp_path) as start:
            start("tests.attacks.scoring_flood", life.address, *messages(life, tmp_path, attackers))
            await life.until(lambda: spent)
            spent.clear()
            began = time.monotonic()
            under = await rounds_per_minute(life, SECONDS)
            took = time.monotonic() - began
        share = sum(spent) / took
        assert spent
        assert sum(spent) <= took / 3 + BURST + 2 * max(spent)
        before = {1: "36", 2: "1.0"}.get(attackers, "-")
        figure(
            f"EvaluateModel by {attackers} member{'s' * (attackers > 1)}",
            f"{before} of 99.6 rounds/min",
            f"{under:.0f} of {quiet:.0f} rounds/min, scoring {share:.0%}",
        )

    play(tmp_path, scene)


def test_a_stranger_gets_neither_scores_nor_models(tmp_path: Path, figure: Figure) -> None:
    async def scene(town: Town) -> None:
        life = await town.runs("n", policy={"name": "el"}, privacy={"oracle": True})
        await life.rounds(1)
        assert life.node.policy
        client = PeerClient(PeerId("stranger"), life.node.settings.run, WireSettings())
        try:
            for call in (
                client.evaluate(life.node.id, life.address, life.node.policy.model),
                client.fetch(life.node.id, life.address, "model", life.node.policy.model.layout),
            ):
                with pytest.raises(Refused) as refused:
                    await call
                assert refused.value.reason is Reason.UNKNOWN_PEER
        finally:
            await client.close()
        figure("EvaluateModel and GetModel by non-members", "answered exactly", "refused: unknown_peer")

    play(tmp_path, scene)
