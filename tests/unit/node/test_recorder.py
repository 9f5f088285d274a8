"""The recorder: published model, measurements, checkpoints, and a full disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from safetensors import safe_open
from structlog.testing import capture_logs

from pfl_node.daemon.disk_store import DiskStore
from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import PeerGone, Reason, Refused, StoreError
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.context import WorkCount
from pfl_node.node.recorder import Recorder, checkpoint_facts, restore_checkpoint
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.settings import Settings
from pfl_node.steps import Publish, Record, Report
from pfl_node.store.checkpoints import Checkpoints
from pfl_node.types import PeerId
from tests.arm_failpoints import failing
from tests.toy import LAYOUT, ToyLearner, constant

ME = PeerId("me")


class Walk(Policy):
    """A policy that the test moves from round to round."""

    async def main(self) -> None: ...


class Scene:
    """A recorder with its collaborators."""

    def __init__(self, path: Path, trainer: TrainerThread, settings: dict[str, Any]) -> None:
        self.settings = Settings.model_validate(settings)
        self.home = self.store = DiskStore.open(path)
        self.policy = Walk(
            me=ME, cfg=PolicyConfig(), model=constant(8.0), rounds=None, seed=0, rng=random.Random(0)
        )
        self.published: list[Publish] = []
        self.ended: list[int] = []
        self.observed: list[str] = []
        self.work = WorkCount()
        learner = ToyLearner()
        self.recorder = Recorder(
            self.settings,
            self.store,
            self.policy,
            learner,
            ThreadTrainer.of(trainer, learner),
            work=self.work,
            log=structlog.get_logger(),
            publish=self.published.append,
            ended=lambda round: self.ended.append(round),
            observe=lambda event, _: self.observed.append(event),
        )

    async def rounds(self, n: int) -> None:
        """Report n rounds; all parameters of the model of round t are t."""
        for _ in range(n):
            t = self.policy.round
            self.policy.model = constant(float(t))
            await self.recorder.report(Report(t, self.policy.model, {"from": ["you"]}, tag=t + 5, notes={"x": t}))
            self.policy.round += 1

    @property
    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.home.journal.read_text().splitlines()]

    def checkpoint(self) -> dict[str, Any] | None:
        facts = checkpoint_facts(self.settings, self.policy)
        found = Checkpoints(self.home.checkpoint).load(LAYOUT, **facts)
        return found.state if found else None

    def model(self) -> tuple[dict[str, Any], dict[str, str]]:
        with safe_open(self.home.model, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def errors_in(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [entry for entry in logs if entry["log_level"] == "error"]


def play(path: Path, act: Callable[[Scene], Awaitable[None]], **settings: Any) -> Scene:
    async def go() -> Scene:
        trainer = TrainerThread()
        scene = Scene(path, trainer, settings)
        try:
            await act(scene)
        finally:
            await trainer.close()
            scene.recorder.close()
            scene.home.close()
        return scene

    return asyncio.run(go())


def test_a_report_publishes_the_model_and_is_written_down_with_its_figures(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: s.rounds(2))
    assert scene.published == [Publish(constant(t), t, t + 5, {"x": t}) for t in (0, 1)]
    assert scene.ended == [0, 1]
    assert scene.observed == ["round", "round"]
    rows = scene.journal
    assert [row["round"] for row in rows] == [0, 1]
    assert (rows[1]["from"], rows[1]["test_loss"], rows[1]["val_accuracy"]) == (["you"], 1.0, 0.5)
    assert scene.recorder.measured["test"].loss == 1.0
    assert scene.recorder.reported["round"] == {"from": ["you"]}
    assert scene.work.models == {"measured": 4}


def test_a_report_can_leave_the_published_model_as_it_is(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.recorder.report(Report(0, scene.policy.model, publish=False))

    scene = play(tmp_path, act)
    assert scene.published == []
    assert scene.journal[0]["event"] == "round"


def test_it_measures_only_when_that_is_due(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: s.rounds(6), eval={"every": 3})
    assert [row["round"] for row in scene.journal if "test_loss" in row] == [2, 5]
    assert scene.work.models == {"measured": 4}


def test_a_checkpoint_is_written_every_so_many_rounds(tmp_path: Path) -> None:
    kept: list[int | None] = []

    async def act(scene: Scene) -> None:
        for _ in range(5):
            await scene.rounds(1)
            state = scene.checkpoint()
            kept.append(state["round"] if state else None)

    play(tmp_path, act, store={"checkpoint_every": 2})
    assert kept == [None, 1, 1, 3, 3]


def test_a_record_is_written_at_once_and_the_last_of_each_is_told(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.recorder.record(Record("neighbours", {"ids": ["a"]}))
        scene.recorder.record(Record("neighbours", {"ids": ["b"], "loss": float("nan")}))

    scene = play(tmp_path, act)
    assert [row["ids"] for row in scene.journal] == [["a"], ["b"]]
    assert scene.journal[1]["loss"] is None
    assert scene.recorder.reported["neighbours"]["ids"] == ["b"]


def test_failed_calls_are_counted_by_what_and_why(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        for _ in range(2):
            scene.recorder.failed("SendModel", Refused(Reason.STALE_ROUND, "too late", "you"))
        scene.recorder.failed("Fetch", PeerGone("you", "no answer"))

    scene = play(tmp_path, act)
    assert scene.recorder.failures == {("SendModel", "stale_round"): 2, ("Fetch", "gone"): 1}


# -- the end -----------------------------------------------------------------------------------------------------


def test_done_the_last_model_is_measured_and_everything_is_on_disk(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(2)
        await scene.recorder.finish("done")

    scene = play(tmp_path, act, eval={"every": 10})
    assert scene.journal[-1]["event"] == "finished"
    assert (scene.journal[-1]["how"], scene.journal[-1]["round"], scene.journal[-1]["test_loss"]) == (
        "done",
        2,
        1.0,
    )
    state = scene.checkpoint()
    assert state is not None
    assert (state["round"], state["model"]) == (1, constant(1.0))
    tensors, facts = scene.model()
    assert all(np.array_equal(t, np.ones_like(t)) for t in tensors.values())
    assert set(tensors) == {"core", "head"}
    assert (facts["node"], facts["policy"], facts["task"], facts["run"]) == (ME, "pens", "digits", "default")
    assert (facts["round"], facts["measured_round"], facts["test_loss"]) == ("2", "2", "1")
    assert facts["layout"] == LAYOUT.digest


def test_done_a_model_that_was_just_measured_is_not_measured_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(2)
        await scene.recorder.finish("done")

    scene = play(tmp_path, act)
    assert scene.work.models == {"measured": 4}
    assert scene.journal[-1]["test_loss"] == 1.0


def test_stopped_the_state_of_the_last_report_counts_and_nothing_is_measured(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(3)
        scene.policy.model = constant(99.0)  # in the middle of a round
        await scene.recorder.finish("stopped")

    scene = play(tmp_path, act, eval={"every": 2})
    state = scene.checkpoint()
    assert state is not None
    assert (state["round"], state["model"]) == (2, constant(2.0))
    tensors, facts = scene.model()
    assert float(tensors["core"][0]) == 2.0
    assert (facts["round"], facts["measured_round"]) == ("3", "1")
    assert "test_loss" not in scene.journal[-1]


def test_stopped_before_the_first_round_there_is_a_model_and_no_checkpoint(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: s.recorder.finish("stopped"))
    assert scene.checkpoint() is None
    assert float(scene.model()[0]["core"][0]) == 8.0
    assert scene.journal[-1]["how"] == "stopped"


def test_a_run_that_failed_keeps_what_it_had(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(1)
        await scene.recorder.finish("failed")

    scene = play(tmp_path, act)
    assert scene.checkpoint() is not None
    assert scene.journal[-1]["how"] == "failed"


def test_every_checkpoint_writes_the_personal_model_with_its_facts(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(1)
        assert not scene.home.model.exists()
        await scene.rounds(1)
        tensors, facts = scene.model()
        assert {float(value) for array in tensors.values() for value in array.ravel()} == {1.0}
        assert (facts["format"], facts["round"], facts["node"]) == ("pfl-node model 1", "1", ME)
        assert (facts["task"], facts["policy"], facts["run"]) == ("digits", "pens", "default")
        assert (facts["layout"], facts["test_loss"]) == (LAYOUT.digest, "1")

    play(tmp_path, act, store={"checkpoint_every": 2})


def test_a_model_that_is_on_disk_already_is_not_written_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds(1)
        scene.policy.round -= 1  # as in the round whose checkpoint wrote it
        before = scene.home.model.stat().st_ino
        await scene.recorder.finish("stopped")
        assert scene.home.model.stat().st_ino == before

    play(tmp_path, act, store={"checkpoint_every": 1})


# -- a bad disk --------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    async def act(scene: Scene) -> None:
        await scene.rounds(1)
        with monkeypatch.context() as broken:
            broken.setattr("os.fsync", full)
            await scene.rounds(1)
            assert scene.recorder.written() == {"checkpoint_round": 0, "failed_checkpoints": 1, "lost_lines": 0}
            await scene.recorder.finish("stopped")
            assert scene.recorder.unwritten == ("the last checkpoint", "model.safetensors")
        await scene.rounds(1)  # the disk has room again
        assert scene.recorder.written() == {"checkpoint_round": 2, "failed_checkpoints": 0, "lost_lines": 0}

    with capture_logs() as logs:
        scene = play(tmp_path, act, store={"checkpoint_every": 1})
    complaints = [(entry["log_level"], entry["error"]) for entry in errors_in(logs)]
    assert [level for level, _ in complaints] == ["error"] * 4  # checkpoint and model, twice
    assert all("No space left" in text for _, text in complaints)
    state = scene.checkpoint()
    assert state is not None
    assert state["round"] == 2


def test_a_full_disk_costs_lines_of_the_journal_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")

    async def act(scene: Scene) -> None:
        await scene.rounds(9)
        await scene.recorder.finish("done")

    with capture_logs() as logs:
        scene = play(tmp_path, act)
    assert [(entry["lost"], entry["lines_lost"]) for entry in errors_in(logs)] == [
        ("round", count) for count in (1, 2, 4, 8)
    ]
    assert scene.observed == ["round"] * 9 + ["finished"]
    assert scene.checkpoint() is not None
    assert scene.home.model.exists()
    assert scene.recorder.unwritten == ()


def test_a_journal_that_is_written_again_says_how_many_lines_are_missing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        with failing("journal.write=3*error(ENOSPC)"):
            await scene.rounds(5)

    with capture_logs() as logs:
        scene = play(tmp_path, act)
    assert [e["lines_lost"] for e in logs if e["event"] == "the journal can be written again"] == [3]
    assert [row["round"] for row in scene.journal if row["event"] == "round"] == [3, 4]


def test_a_policy_with_a_state_that_cannot_be_kept_trains_on(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        type(scene.policy).keeps = ("secret",)
        scene.policy.secret = object()  # type: ignore[attr-defined]
        try:
            await scene.rounds(2)
        finally:
            type(scene.policy).keeps = ()

    with capture_logs() as logs:
        play(tmp_path, act, store={"checkpoint_every": 1})
    assert all("cannot be stored" in entry["error"] for entry in errors_in(logs))
    assert len(errors_in(logs)) == 2


def test_a_stop_waits_for_a_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, may_end, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(handle: int) -> None:
        if not writing.is_set():
            writing.set()
            assert may_end.wait(30)
        fsync(handle)

    async def act(scene: Scene) -> None:
        monkeypatch.setattr("os.fsync", slow)
        report = asyncio.create_task(scene.rounds(1))
        await asyncio.to_thread(writing.wait, 30)
        report.cancel()
        end = asyncio.create_task(scene.recorder.finish("stopped"))
        await asyncio.wait((end,), timeout=0.1)
        assert not end.done()
        may_end.set()
        await end

    with capture_logs() as logs:
        scene = play(tmp_path, act, store={"checkpoint_every": 1})
    assert errors_in(logs) == []
    assert scene.checkpoint() is not None
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


def test_a_checkpoint_that_another_node_wrote_is_gone_on_from_and_told(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: s.rounds(1), store={"checkpoint_every": 1})
    writer, told = scene.home.identity.id, list[str]()
    log = structlog.get_logger()
    restore_checkpoint(scene.policy, scene.settings, scene.store, LAYOUT, warn=told.append, log=log)
    assert scene.policy.round == 1
    assert told == [
        f"checkpoint-000001.safetensors was written by node {writer}, and this is {scene.policy.me}: "
        "is it in the right place?"
    ]


def test_a_checkpoint_of_another_run_is_not_gone_on_from(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: s.rounds(1), store={"checkpoint_every": 1})
    facts = checkpoint_facts(Settings(run="other"), scene.policy)
    with pytest.raises(StoreError, match=r"another run \('default', now 'other'\)"):
        Checkpoints(scene.home.checkpoint).load(LAYOUT, **facts)


def test_a_peer_that_does_not_fit_is_told_once(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        for _ in range(3):
            scene.recorder.failed("SendModel", Refused(Reason.LAYOUT, "another layout", "b"))
            scene.recorder.failed("SendModel", PeerGone("c", "no answer"))

    with capture_logs() as logs:
        play(tmp_path, act)
    assert [(e["peer"], e["why"]) for e in logs if e["log_level"] == "warning"] == [("b", "layout")]
