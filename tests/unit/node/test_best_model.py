"""The best model by the validation data, and early stopping for every policy."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import structlog

from pfl_node.node.best_model import BestTracker
from pfl_node.node.recorder import restore_checkpoint
from pfl_node.steps import Report
from pfl_node.store.model_file import read_model
from tests.arm_failpoints import failing
from tests.toy import LAYOUT, constant
from tests.unit.node.test_recorder import Scene, play

VALUES = (3.0, 1.0, 2.0, 4.0, 5.0)  # the toy learner scores a model higher the closer it is to 0
STEP_BY_STEP = {"checkpoint_every": 1}


async def reports(scene: Scene, *values: float) -> None:
    """Report rounds as a policy does, until it has no more."""
    for value in values:
        if not scene.policy.more:
            return
        scene.policy.model = constant(value)
        await scene.recorder.report(Report(scene.policy.round, scene.policy.model))
        scene.policy.round += 1


def best_in(path: Path) -> tuple[dict[str, str], float]:
    facts, tensors = read_model(path / "best.safetensors")
    return facts, float(next(iter(tensors.values())).flat[0])


def test_the_best_model_is_written_with_its_round_and_metric(tmp_path: Path) -> None:
    play(tmp_path, lambda s: reports(s, *VALUES), store=STEP_BY_STEP)
    facts, value = best_in(tmp_path)
    assert value == 1.0
    assert (facts["round"], facts["metric"], facts["quality"]) == ("1", "accuracy", "0.5")
    assert facts["val_accuracy"] == "0.5"


def test_an_unchanged_best_model_is_not_written_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await reports(scene, 3.0, 1.0)
        file = tmp_path / "best.safetensors"
        before = file.stat().st_ino
        await reports(scene, 2.0)
        assert file.stat().st_ino == before  # a write replaces the file
        assert scene.recorder.best.best is not None
        assert scene.recorder.best.best.model is None  # and the memory is free
        await reports(scene, 0.5)
        assert file.stat().st_ino != before

    play(tmp_path, act, store=STEP_BY_STEP)


def test_a_best_model_that_the_full_disk_refused_is_written_with_the_next_checkpoint(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        with failing("model.create=2*error(ENOSPC)"):
            await reports(scene, 1.0)
        assert "best.safetensors" in scene.recorder.unwritten
        await reports(scene, 2.0)
        assert scene.recorder.unwritten == ()

    play(tmp_path, act, store=STEP_BY_STEP)
    assert best_in(tmp_path)[1] == 1.0


def test_a_restarted_node_knows_its_best_quality_and_keeps_the_file(tmp_path: Path) -> None:
    play(tmp_path, lambda s: reports(s, 1.0), store=STEP_BY_STEP)

    async def again(scene: Scene) -> None:
        kept = restored(scene)
        scene.recorder.best.load(kept["best"])
        await reports(scene, 2.0)

    play(tmp_path, again, store=STEP_BY_STEP)
    assert best_in(tmp_path)[0]["round"] == "0"


def restored(scene: Scene) -> dict[str, Any]:
    log, warnings = structlog.get_logger(), list[str]()
    found = restore_checkpoint(scene.policy, scene.settings, scene.store, LAYOUT, warn=warnings.append, log=log)
    return {**found, "warnings": warnings}


def test_a_node_stops_after_patience_rounds_without_a_better_result(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: reports(s, *VALUES), train={"patience": 2})
    assert scene.policy.round == 4  # rounds 2 and 3 were no better than 1
    assert scene.policy.model == constant(1.0)
    (row,) = [row for row in scene.journal if row["event"] == "stopped"]
    assert (row["round"], row["back_to"], row["why"]) == (3, 1, "train.patience")


def test_without_patience_no_node_stops(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: reports(s, *VALUES))
    assert scene.policy.round == len(VALUES)
    assert scene.policy.model == constant(5.0)


def test_patience_is_checked_in_the_rounds_that_are_evaluated(tmp_path: Path) -> None:
    scene = play(tmp_path, lambda s: reports(s, 1.0, *range(2, 9)), train={"patience": 1}, eval={"every": 3})
    assert scene.policy.round == 6  # evaluated in rounds 2 and 5


def test_a_stopped_node_stays_stopped_after_a_restart_unless_its_patience_is_raised(tmp_path: Path) -> None:
    play(tmp_path, lambda s: reports(s, *VALUES), train={"patience": 2}, store=STEP_BY_STEP)

    async def stays(scene: Scene) -> None:
        assert restored(scene)["warnings"][-1:] == [
            "stopped early already: raise train.patience, or give another --data-dir"
        ]
        assert not scene.policy.more

    async def goes_on(scene: Scene) -> None:
        kept = restored(scene)
        assert scene.policy.more
        scene.recorder.best.load(kept["best"])
        await reports(scene, 9.0)
        assert scene.policy.more
        await reports(scene, 9.0)
        assert not scene.policy.more
        assert scene.policy.model == constant(1.0)

    play(tmp_path, stays, train={"patience": 2})
    play(tmp_path, goes_on, train={"patience": 4})


def test_a_quality_that_is_not_a_number_is_never_the_best() -> None:
    tracker = BestTracker(2)
    assert not tracker.add(nan, 0, constant(1.0), None)
    assert tracker.add(-7.0, 1, constant(1.0), None)
    assert not tracker.add(nan, 3, constant(2.0), None)
    assert tracker.exhausted


def test_a_store_that_writes_no_models_holds_none_in_memory() -> None:
    tracker = BestTracker(None, written=False)
    assert tracker.add(0.5, 0, constant(1.0), None)
    assert tracker.best is not None
    assert tracker.best.model is None
