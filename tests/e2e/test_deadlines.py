"""Deadlines between real nodes: who is waited for is told, a round goes on without those who do not come, and they
catch up."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pfl_node.learning.trainer import Between
from pfl_node.ops.status import facts_of
from pfl_node.types import PeerId
from tests.e2e.in_process import Life, Town, play
from tests.e2e.processes import Process, ask, fast, processes, until
from tests.e2e.test_node import Guest, HeldTrainer

T = TypeVar("T")
EL = {"name": "el"}


class Stuck(HeldTrainer):
    """Says when a job of its is held: until it may begin, nothing more comes of its node."""

    def __init__(self) -> None:
        super().__init__()
        self.may_begin.set()
        self.held = False

    async def do(self, work: Callable[[Between], T]) -> T:
        self.held = not self.may_begin.is_set()
        return await super().do(work)


async def two(town: Town, trainer: Stuck, **waiting: Any) -> tuple[Life, Life]:
    """Ann, and Bob, who does nothing more from now on."""
    common = {"policy": EL, "start": {"peers": 1, "wait": 60}, "round": waiting}
    ann = await town.runs("ann", **common)
    bob = await town.runs("bob", trainer=trainer, peer_seed=[ann.address], **common)
    await bob.rounds(1)
    trainer.may_begin.clear()
    await bob.until(lambda: trainer.held)
    return ann, bob


async def told(life: Life) -> dict[str, Any]:
    """What the node says over gRPC, as `pfl-node status` shows it."""
    async with Guest(life) as guest:
        return facts_of(await guest.client.status(life.address))


def test_who_is_waited_for_is_told_with_the_time_that_is_left(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        trainer = Stuck()
        ann, bob = await two(town, trainer, patience=3600, least=3600)
        await ann.until(lambda: [w for w in seen(ann) if w["what"] == "models"])
        facts = await told(ann)
        (waiting,) = facts["waiting"]
        assert (waiting["what"], waiting["round"], waiting["peers"]) == ("models", bob.round, [bob.node.id])
        assert 0 < waiting["seconds_left"] <= 3600
        assert facts["waiting_for"] == [bob.node.id]
        trainer.may_begin.set()
        await ann.rounds(2)
        await bob.close()
        await trainer.close()

    play(tmp_path, scene)


def seen(life: Life) -> list[dict[str, Any]]:
    return life.node.driver.waits.table(0.0) if life.node.driver else []


def test_a_round_goes_on_without_one_that_does_not_come_and_says_so(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        trainer = Stuck()
        ann, bob = await two(town, trainer, patience=0.3)
        await ann.until(lambda: ann.round >= bob.round + 4)
        lost = [row["peers"] for row in ann.journal if row["event"] == "given_up"]
        assert lost
        assert lost == [[bob.node.id]] * len(lost)
        assert ann.node.node_observer.hub.recent(kinds={"given_up"})[-1].data["peers"] == [bob.node.id]
        assert (await told(ann))["given_up"] >= len(lost)
        trainer.may_begin.set()
        received = ann.node.host.received[bob.node.id]
        await bob.until(lambda: ann.node.host.received[bob.node.id] >= received + 3)
        await bob.close()
        await trainer.close()

    play(tmp_path, scene)


def rounds(folder: Path) -> list[int]:
    """Those that a process has written down."""
    path = folder / "journal.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row["round"] for row in rows if row["event"] == "round"]


def furthest(folder: Path) -> int:
    return max(rounds(folder), default=-1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["el", "fedavg"])
def test_a_process_that_stood_still_for_long_goes_on_where_the_others_are(tmp_path: Path, policy: str) -> None:
    """SIGSTOP for more rounds than others' models are taken ahead, then SIGCONT."""
    folders = [tmp_path / f"n{i}" for i in range(4)]
    words = ["--policy", policy, *fast(policy=["start.peers=3", "start.wait=90", "store.checkpoint_every=1000"])]
    words += ["--set", "policy.C=1"] if policy == "fedavg" else []
    with processes(tmp_path, preloaded=True) as start:
        bootstrap = start("bootstrap", "--listen", "127.0.0.1:0")
        nodes: list[Process] = [
            start("pfl_node", "--peer-seed", bootstrap.address, "--data-dir", folder, *words) for folder in folders
        ]
        until(lambda: min(map(furthest, folders)) >= 3, nodes[0])
        paused, others = nodes[3], folders[:3]
        me = PeerId(ask("status", paused.address)["id"])
        paused.popen.send_signal(signal.SIGSTOP)
        held = furthest(folders[3])
        until(lambda: min(map(furthest, others)) >= held + 60, nodes[0])
        paused.popen.send_signal(signal.SIGCONT)
        until(lambda: furthest(folders[3]) >= held + 60, paused)
        between = [t for t in rounds(folders[3]) if held < t < held + 60]
        assert len(between) < 10  # those it missed it has not done
        before = ask("status", nodes[0].address)["models_received"][me]
        until(lambda: ask("status", nodes[0].address)["models_received"][me] >= before + 3, nodes[0])


@pytest.mark.slow
def test_a_process_that_comes_when_the_others_are_in_round_50_learns_with_them(tmp_path: Path) -> None:
    folders = [tmp_path / f"n{i}" for i in range(3)]
    words = ["--policy", "el", *fast(policy=["start.wait=90"])]
    with processes(tmp_path, preloaded=True) as start:
        first = start("pfl_node", "--data-dir", folders[0], *words)
        second = start("pfl_node", "--peer-seed", first.address, "--data-dir", folders[1], *words)
        until(lambda: min(furthest(folders[0]), furthest(folders[1])) >= 50, second)
        late = start("pfl_node", "--peer-seed", first.address, "--data-dir", folders[2], *words)
        until(lambda: len(rounds(folders[2])) >= 5, late)
        assert min(rounds(folders[2])) >= 50
        me = ask("status", late.address)["id"]
        until(lambda: ask("status", first.address)["models_received"].get(me, 0) >= 3, first)
