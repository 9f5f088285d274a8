"""The life of a node: start, peers, stop, restart, mistakes. Real nodes in this process, real gRPC."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from grpc_health.v1 import health_pb2
from safetensors import safe_open

from pfl_node.errors import ConfigError, PflError, Reason, Refused, StoreError, TaskError
from pfl_node.learning.trainer import Between, TrainerThread
from pfl_node.settings import WireSettings
from pfl_node.store.checkpoints import Checkpoints
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from tests.e2e.in_process import Life, Town, play

T = TypeVar("T")
CARL = PeerId("carl")
FOREVER = {"steps": 10_000_000}  # batches in one round
EL = {"name": "el"}
LOCAL = {"name": "local"}


@pytest.fixture(autouse=True)
def nothing_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the modules of his files nor their folders."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in [n for n in sys.modules if n not in before and n.startswith("pfl_plugin_")]:
        del sys.modules[name]


class Guest:
    """Somebody who calls a node and is no member."""

    def __init__(self, host: Life) -> None:
        self.host = host
        host.node.host.member = CARL.__eq__
        self.client = PeerClient(CARL, host.node.settings.run, WireSettings())

    async def __aenter__(self) -> Guest:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def state(self) -> str:
        return (await self.client.status(self.host.address)).state

    async def health(self) -> str:
        async with grpc.aio.insecure_channel(self.host.address) as channel:
            check: Any = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = await check(health_pb2.HealthCheckRequest(service="pfl.v1.Peer"), timeout=30)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


class HeldTrainer(TrainerThread):
    """Its long jobs wait until they may begin; the first one imports torch and loads the task."""

    def __init__(self) -> None:
        super().__init__()
        self.may_begin = asyncio.Event()

    async def do(self, work: Callable[[Between], T]) -> T:
        await self.may_begin.wait()
        return await super().do(work)


# -- start -----------------------------------------------------------------------------------------------------


def test_the_port_answers_before_anything_is_loaded_and_says_so(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        trainer = HeldTrainer()
        life = await town.runs("n", trainer=trainer, policy=LOCAL, train=FOREVER)
        async with Guest(life) as guest:
            assert (await guest.state(), await guest.health()) == ("starting", "NOT_SERVING")
            with pytest.raises(Refused) as caught:
                await guest.client.send(life.node.id, life.address, (await some_model(town)))
            assert caught.value.reason is Reason.NOT_READY
            trainer.may_begin.set()
            await life.trains()
            assert (await guest.state(), await guest.health()) == ("training", "SERVING")
            assert await life.stops() == "stopped"
            assert (await guest.state(), await guest.health()) == ("leaving", "NOT_SERVING")
        await life.close()
        await trainer.close()

    play(tmp_path, scene)


async def some_model(town: Town) -> Any:
    other = await (await town.runs("other", policy=LOCAL, train=FOREVER)).trains()
    assert other.node.policy
    return other.node.policy.model


def test_a_stop_while_it_still_loads_ends_it(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await town.runs("n", trainer=HeldTrainer(), policy=LOCAL)
        async with Guest(life) as guest:
            assert await guest.state() == "starting"
        assert await life.stops() == "stopped"
        assert sorted(p.name for p in life.node.home.path.iterdir()) == ["identity.json", "lock", "settings.toml"]

    play(tmp_path, scene)


def test_a_node_alone_finishes_its_rounds(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        policies: list[dict[str, Any]] = [
            LOCAL,
            EL,
            {"name": "facade", "warmup": 1},
            {"name": "gossip", "quiet": 0.1},
            {"name": "pens", "quiet": 0.1},
        ]
        lives = [await town.runs(p["name"], policy=p, rounds=3) for p in policies]
        for life in lives:
            assert await life.ends() == "done"
            assert [row["round"] for row in life.rows("round")][:3] == [0, 1, 2]
            assert life.rows("finished")[0]["test_accuracy"] > 0.2
            assert life.node.state == "done"

    play(tmp_path, scene)


def test_a_training_that_diverges_is_thrown_away_and_the_node_goes_on(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await town.runs("n", policy=LOCAL, rounds=3, train={"lr": 1e30})
        assert await life.ends() == "done"
        assert [row["round"] for row in life.rows("diverged")] == [0, 1, 2]
        assert life.node.policy
        assert life.node.policy.model.is_finite()

    play(tmp_path, scene)


# -- what it serves --------------------------------------------------------------------------------------------


def test_an_evaluation_is_answered_while_a_long_training_is_under_way(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await (await town.runs("n", policy={"name": "greedy"}, train=FOREVER)).trains()
        async with Guest(life) as guest:
            assert life.node.policy
            model = life.node.policy.model
            with pytest.raises(Refused, match="has published no model yet"):
                await guest.client.fetch(life.node.id, life.address, "model", model.layout)
            for _ in range(3):
                score = await guest.client.evaluate(life.node.id, life.address, model)
                assert score.samples == 40
        assert life.rows("round") == []
        assert life.node.work.models["trained"] == 0
        assert await life.stops() == "stopped"

    play(tmp_path, scene)


def layout_of(life: Life) -> Any:
    assert life.node.policy
    return life.node.policy.model.layout


ONCE = """
from pfl_node.policies.base import Policy
from pfl_node.steps import Report, Sleep, Train

class Once(Policy):
    async def main(self):
        self.model = await Train(self.model)
        await Report(0, self.model)
        self.model = await Train(self.model)  # not published
        await Sleep(1e9)
"""


def test_get_head_and_get_model_give_the_model_of_the_last_report(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)

    async def scene(town: Town) -> None:
        life = await town.runs("n", policy={"name": f"{tmp_path}/once.py:Once"})
        await life.until(lambda: life.node.work.models["trained"] == 2)
        peer, layout = life.node.id, layout_of(life)
        async with Guest(life) as guest:
            whole = await guest.client.fetch(peer, life.address, "model", layout)
            head = await guest.client.fetch(peer, life.address, "head", layout)
            core = await guest.client.fetch(peer, life.address, "core", layout)
        assert (whole.sender, whole.round, whole.samples) == (peer, 0, 40)
        assert head.model == whole.model.head
        assert core.model == whole.model.core
        assert life.node.policy
        assert whole.model != life.node.policy.model
        await life.stops()
        with safe_open(life.node.home.model, framework="numpy") as file:
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        recorder = life.node.recorder
        assert recorder
        learner: Any = recorder.learner
        assert learner.from_tensors(kept) == whole.model

    play(tmp_path, scene)


# -- stop, restart, come late ----------------------------------------------------------------------------------


def test_a_node_stopped_in_mid_training_writes_everything_and_says_goodbye(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await bob.rounds(3)
        assert await bob.stops() == "stopped"
        await ann.until(lambda: state_of(ann, bob) == "left")
        assert bob.journal[-1]["how"] == "stopped"
        kept = bob.journal[-1]["round"]
        newest, *_ = Checkpoints(bob.node.home.checkpoint).files().values()
        with safe_open(newest, framework="numpy") as file:
            assert file.metadata()["policy"] == "El"
            assert file.metadata()["incarnation"] == str(bob.node.home.identity.incarnation)
        with safe_open(bob.node.home.model, framework="numpy") as file:
            facts = file.metadata()
        assert facts["node"] == bob.node.id
        assert facts["task"] == "digits"
        assert int(facts["measured_round"]) <= int(facts["round"]) == kept
        assert 0 < float(facts["test_accuracy"]) <= 1
        await ann.rounds(3)

    play(tmp_path, scene)


def state_of(seen_by: Life, other: Life) -> str:
    members = {m.id: str(m.state) for m in seen_by.node.membership.members()}
    return members.get(other.node.id, "unknown")


def test_a_restarted_node_is_the_same_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        first = await town.runs("n", policy=LOCAL)
        await first.rounds(3)
        await first.stops()
        await first.close()
        done = len(first.rows("round"))
        second = await town.runs("n", policy=LOCAL, rounds=done + 2)
        assert await second.ends() == "done"
        assert second.node.id == first.node.id
        assert second.node.membership.me.incarnation > first.node.membership.me.incarnation
        assert second.rows("started")[0]["round"] == done
        assert [row["round"] for row in second.journal if row["event"] == "round"] == list(range(done + 2))
        third = await restarted(town, second, policy=LOCAL, rounds=done + 2)
        assert await third.ends() == "done"
        assert third.rows("round") == []

    play(tmp_path, scene)


async def restarted(town: Town, life: Life, **settings: Any) -> Life:
    await life.close()
    return await town.runs(life.node.name, **settings)


@pytest.mark.parametrize(
    ("now", "complaint"),
    [({"policy": EL}, "another policy"), ({"policy": LOCAL, "run": "other"}, "another run")],
)
def test_a_checkpoint_of_something_else_is_not_gone_on_from(
    tmp_path: Path, now: dict[str, Any], complaint: str
) -> None:
    async def scene(town: Town) -> None:
        first = await town.runs("n", policy=LOCAL, rounds=1)
        await first.ends()
        second = await restarted(town, first, **now)
        with pytest.raises(StoreError, match=complaint):
            await second.ends()

    play(tmp_path, scene)


def test_a_late_node_of_a_lockstep_policy_starts_at_the_swarms_round_and_its_models_are_taken(
    tmp_path: Path,
) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await ann.until(lambda: any(peer.round >= 20 for peer in ann.node.membership.alive()))
        eve = await town.runs("eve", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await eve.until(lambda: eve.rows("started"))
        assert eve.rows("started")[0]["round"] >= 20
        others = [ann.node.host, bob.node.host]
        await eve.until(lambda: all(other.received[eve.node.id] >= 3 for other in others))
        await ann.rounds(3)

    play(tmp_path, scene)


def test_a_node_that_died_and_comes_back_catches_up_with_the_swarm(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await bob.rounds(3)
        await bob.stops()
        await ann.rounds(30)
        again = await restarted(town, bob, policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await again.until(lambda: again.rows("started"))
        assert again.rows("started")[0]["round"] >= 30
        await ann.until(lambda: state_of(ann, again) == "alive")
        before = ann.node.host.received[bob.node.id]
        await again.until(lambda: ann.node.host.received[again.node.id] >= before + 3)

    play(tmp_path, scene)


def test_a_node_that_was_killed_and_starts_again_at_once_is_let_in_at_its_new_address(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await bob.rounds(3)
        await bob.node.membership.close()  # as kill -9 does: nobody is told
        await bob.stops()
        assert state_of(ann, bob) == "alive"
        again = await restarted(town, bob, policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await again.trains()
        await ann.until(lambda: ann.node.peers().get(again.node.id) == again.address)
        received = ann.node.host.received[bob.node.id]
        await again.until(lambda: ann.node.host.received[bob.node.id] >= received + 3)

    play(tmp_path, scene)


def test_a_node_that_was_held_up_goes_on_where_the_others_are(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        trainer = HeldTrainer()
        trainer.may_begin.set()
        common = {"policy": EL, "start": {"peers": 2, "wait": 30}, "round": {"patience": 0.2}}
        ann = await town.runs("ann", **common)
        eve = await town.runs("eve", peer_seed=[ann.address], **common)
        bob = await town.runs("bob", trainer=trainer, peer_seed=[ann.address], **common)
        await bob.rounds(2)
        trainer.may_begin.clear()
        held = bob.round
        await ann.until(lambda: min(ann.round, eve.round) >= held + 6)
        trainer.may_begin.set()
        await bob.until(lambda: bob.round >= held + 6)
        received = ann.node.host.received[bob.node.id]
        await bob.until(lambda: ann.node.host.received[bob.node.id] >= received + 3)
        rounds = [row["round"] for row in bob.rows("round")]
        assert rounds == sorted(set(rounds))
        assert len(rounds) < rounds[-1] + 1  # those it missed it has not done
        await bob.close()
        await trainer.close()

    play(tmp_path, scene)


def test_nodes_of_two_runs_share_the_membership_and_no_models(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, run="a")
        bob = await town.runs("bob", policy=EL, run="b", peer_seed=[ann.address], round={"alone": "train"})
        await bob.until(lambda: state_of(ann, bob) == state_of(bob, ann) == "alive")
        await ann.rounds(2)
        await bob.rounds(2)
        assert (ann.node.peers(), bob.node.peers()) == ({}, {})
        assert (ann.node.host.received, bob.node.host.received) == ({}, {})

    play(tmp_path, scene)


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ["ann", "bob"])
def test_a_copied_data_directory_is_refused_in_one_line_and_its_owner_stays(tmp_path: Path, seed: str) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy=EL, start={"wait": 30})
        bob = await town.runs("bob", policy=EL, start={"wait": 30}, peer_seed=[ann.address])
        await bob.rounds(2)
        shutil.copytree(bob.node.home.path, tmp_path / "copy")
        asked = {"ann": ann, "bob": bob}[seed]
        copy = await town.runs("copy", policy=EL, peer_seed=[asked.address])
        assert copy.node.id == bob.node.id
        with pytest.raises(ConfigError, match=r"is in use by bob.*data directory of its own") as caught:
            await copy.ends()
        assert "\n" not in str(caught.value)
        await copy.close()
        assert not listens(copy)
        received = ann.node.host.received[bob.node.id]
        await ann.until(lambda: ann.node.host.received[bob.node.id] >= received + 3)
        assert state_of(ann, bob) == "alive"
        assert state_of(bob, ann) == "alive"

    play(tmp_path, scene)


def listens(life: Life) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", life.node.endpoint.port)) == 0


BROKEN = """
import torch
from pfl_node.policies.base import Policy
from pfl_node.steps import Train

def data():
    return torch.zeros(20, 4), torch.zeros(20, dtype=torch.long)

def no_task():
    raise RuntimeError("no such patient")

def no_model():
    return {"model": lambda: 1 / 0, "train": data()}

def no_loss():
    seen = []
    def loss(output, y):
        seen.append(y)
        if len(seen) > 3:
            raise ValueError("a loss that is tired")
        return torch.nn.functional.cross_entropy(output, y)
    return {"model": lambda: torch.nn.Linear(4, 2), "train": data(), "loss": loss}

class Falls(Policy):
    async def main(self):
        await Train(self.model)
        [].pop()

class Waits(Policy):
    async def main(self):
        import asyncio
        await asyncio.sleep(1)
"""


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"task": "no_task"}, TaskError, r"no_task.* \(broken.py, line 10\): RuntimeError: no such patient"),
        ({"task": "no_model"}, TaskError, r"no_model.* \(broken.py, line 13\): ZeroDivisionError"),
        (
            {"task": "no_loss"},
            TaskError,
            r"no_loss.* \(broken.py, line 20\): ValueError: a loss that is tired",
        ),
        (
            {"policy": "Falls"},
            ConfigError,
            r"Falls.* \(broken.py, line 27\): IndexError: pop from empty list",
        ),
        (
            {"policy": "Waits"},
            ConfigError,
            r"Waits.* \(broken.py, line 32\): TypeError: .* awaits steps only",
        ),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)
def test_broken_code_of_the_user_is_one_line_that_says_where_and_the_port_is_closed(
    tmp_path: Path, settings: dict[str, str], error: type[PflError], says: str
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    given: dict[str, Any] = {"policy": LOCAL, "rounds": 2}
    given |= {section: {"name": f"{tmp_path}/broken.py:{name}"} for section, name in settings.items()}

    async def scene(town: Town) -> None:
        life = await town.runs("n", **given)
        with pytest.raises(error, match=says) as caught:
            await life.ends()
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value.__cause__, Exception)
        await life.close()
        assert not listens(life)

    play(tmp_path, scene)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        first = await town.listens("one", policy=LOCAL)
        with pytest.raises(ConfigError, match=r"port \d+ is in use; choose another one, or 0"):
            await town.listens("two", policy=LOCAL, listen=first.address)

    play(tmp_path, scene)
