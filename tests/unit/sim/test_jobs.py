"""Training and scoring in several processes: the journal is the same, byte for byte."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import TaskError
from pfl_node.model import LocalState
from pfl_node.settings.load import load_settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.job_pool import read_frame, write_frame
from pfl_node.sim.simulate import simulate
from pfl_node.types import Eval
from tests.e2e.preloaded import PreloadedWorker
from tests.toy import ToyLearner, constant

EXAMPLES = Path(__file__).parents[3] / "examples"
FAULTS = ("crash:n001@0.4", "restart:n001@1.5", "loss:0.05")


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes have torch already."""
    monkeypatch.setattr("pfl_node.sim.job_pool.Popen", PreloadedWorker)


def ran(out: Path, jobs: int, faults: tuple[str, ...] = (), **told: Any) -> tuple[bytes, dict[str, Any]]:
    settings = load_settings(overrides={"rounds": 2, "task.name": "digits", **told})
    simulate(settings, nodes=4, out=out, jobs=jobs, faults=parse_faults(faults, node_ids(4)))
    summary = json.loads((out / "summary.json").read_text())
    return (out / "journal.jsonl").read_bytes(), {k: v for k, v in summary.items() if not k.endswith("_seconds")}


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    "told",
    [
        {"policy.name": f"{EXAMPLES}/moon/moon.py:Moon", "train.lookahead": 0.5},
        {"policy.name": "greedy", "privacy.oracle": True},
        {"policy.name": "feded", "rounds": 1, "task.auxiliary": 0.2, "policy.epochs": 1},
    ],
    ids=lambda told: told["policy.name"].rpartition(":")[2],
)
def test_a_run_with_two_processes_is_the_same_as_one_with_none(tmp_path: Path, told: dict[str, Any]) -> None:
    assert ran(tmp_path / "two", 2, **told) == ran(tmp_path / "one", 1, **told)


def test_a_crash_throws_away_what_is_computed_elsewhere(tmp_path: Path) -> None:
    told = {"policy.name": "el", "rounds": 3, "train.keep_optimizer": True}
    assert ran(tmp_path / "two", 2, FAULTS, **told) == ran(tmp_path / "one", 1, FAULTS, **told)


@pytest.mark.usefixtures("preloaded")
def test_what_a_task_does_wrong_in_a_process_is_told_in_one_line(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(
        "from pfl_node.learning.digits import digits\n"
        "from dataclasses import replace\n"
        "def mine(index, nodes, seed, node_id):\n"
        "    def loss(output, y):\n"
        "        if output.requires_grad and len(y) > 2 and index == 1:\n"  # not in the check of the task
        "            raise ZeroDivisionError('no')\n"
        "        return output.sum()\n"
        "    return replace(digits(index, nodes, seed, node_id), loss=loss)\n"
    )
    with pytest.raises(TaskError, match=r"task\.py, line 6"):
        ran(tmp_path / "out", 2, (), **{"policy.name": "el", "task.name": f"{task}:mine"})


def test_jobs_and_results_survive_the_pipe() -> None:
    learner, model = ToyLearner(), constant(2.0)
    options = {"teacher": learner.predict(constant(1.0), seed=0), "seed": 7, "lr": 0.1}
    state = LocalState(np.ones(2, np.float32), "digest", {"momentum": np.arange(3)}, {"step": 1})
    results = (Eval(0.5, float("nan"), 3), np.arange(6.0).reshape(2, 3), None, [[1, 2]], constant(3.0).of("head"))
    pipe = io.BytesIO()
    write_frame(pipe, {"node": 1}, (model, options, state, results))
    pipe.seek(0)
    frame = read_frame(pipe) or pytest.fail("nothing came")
    assert frame.facts == {"node": 1}
    again, told, kept, (score, array, nothing, counts, head) = frame.value(learner)
    assert (again, told) == (model, options)
    assert (kept.private == state.private).all()
    assert (kept.tensors["momentum"] == np.arange(3)).all()
    assert (kept.layout, kept.facts) == ("digest", {"step": 1})
    assert (score.loss, score.samples, np.isnan(score.accuracy)) == (0.5, 3, True)
    assert (array == results[1]).all()
    assert (nothing, counts, head) == (None, [[1, 2]], results[4])
    assert read_frame(pipe) is None
