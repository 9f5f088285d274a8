"""Real nodes of which one is malicious: real gRPC, real training on digits, all in this process."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.ops.status import details_of
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from tests.e2e.in_process import Life, Town, play

NODES, BAD = 4, 3
GUARD = {"gate": 0.5, "outliers": 6.0, "least": 2, "quarantine": 600.0}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """On a busy machine torch takes its time, which no deadline of a test has."""
    import_module("pfl_node.learning.learner")


async def a_swarm(town: Town, kind: str, guard: dict[str, Any], rounds: int) -> list[Life]:
    common: dict[str, Any] = {
        "policy": {"name": "el", "degree": 3},
        "rounds": rounds,
        "train": {"init": "common"},
        "attack": {"kind": [kind], "nodes": [BAD]},
        "guard": guard,
        "lab": True,
        "start": {"peers": NODES - 1, "wait": 30.0},
    }
    lives: list[Life] = []
    for index in range(NODES):
        task = {"samples": 40, "index": index, "nodes": NODES, "angles": [0]}
        seeds = [lives[0].address] if lives else []
        lives.append(await town.runs(f"n{index}", task=task, peer_seed=seeds, **common))
    return lives


async def quarantines(life: Life) -> None:
    """Until somebody is in quarantine and was refused for that, and the node has learnt something: counted in its
    own rounds, which take as long as the machine lets them."""
    for _ in range(300):
        learnt = any(row.get("test_accuracy", 0) > 0.5 for row in life.rows("round"))
        if life.rows("quarantined") and "quarantined" in life.node.host.refused and learnt:
            return
        await life.rounds(1)
    raise AssertionError(f"300 rounds, and {life.rows('quarantined')}, {life.node.host.refused}")


@pytest.mark.parametrize(("kind", "reason"), [("nan", "not_finite"), ("sign_flip", "outlier")])
def test_one_that_attacks_is_kept_out_and_quarantined_by_all_others_and_they_go_on(
    tmp_path: Path, kind: str, reason: str
) -> None:
    async def scene(town: Town) -> None:
        lives = await a_swarm(town, kind, GUARD, rounds=100_000)
        bad, honest = lives[BAD].node.id, lives[:BAD]
        for life in lives:
            await life.trains()
        for life in honest:
            await quarantines(life)
            await life.rounds(2)
        for life in honest:
            assert {(row["peer"], row["reason"]) for row in life.rows("quarantined")} == {(bad, reason)}
            status = details_of(life.node)
            assert list(status["guard"]["quarantine"]) == [bad]
            assert status["refused"][reason] > 2
        assert not lives[BAD].rows("quarantined")  # it wants everybody to get its models
        assert not details_of(lives[BAD].node)["honest"]
        assert [await life.stops() for life in lives] == ["stopped"] * NODES

    play(tmp_path, scene)


def test_without_tls_nobody_can_put_another_into_quarantine_by_using_its_name(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await (await town.runs("n", policy={"name": "el"}, train={"steps": 10_000_000})).trains()
        policy = life.node.policy
        assert policy
        victim = PeerId("victim")
        forger = PeerClient(victim, life.node.settings.run, WireSettings())
        bad = type(policy.model)(policy.model.layout, policy.model.vector * float("nan"))
        for _ in range(20):
            with pytest.raises(Refused) as refused:
                await forger.send(life.node.id, life.address, bad, round=0)
            assert refused.value.reason is Reason.NOT_FINITE
        assert life.node.guard.free([victim], asyncio.get_running_loop().time()) == [victim]
        await forger.send(life.node.id, life.address, policy.model, round=0)
        await forger.close()

    play(tmp_path, scene)
