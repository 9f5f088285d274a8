"""A student of another network than the local model, and an ensemble that is measured without a student."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node import predictions
from pfl_node.errors import ConfigError, LayoutMismatch, TaskError
from pfl_node.learning.build import learner_at
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Place
from pfl_node.settings import Settings
from pfl_node.sim.simulate import simulate
from tests.unit.learning.nets import blobs, student

PLACE = Place(index=0, nodes=4, seed=0, node_id="n000")
POLICY: dict[str, Any] = {"name": "feded", "weights": "w0", "epochs": 2, "student_epochs": 2}


def settings(**policy: Any) -> Settings:
    told = {"name": "digits", "auxiliary": 0.5, "model": "mlp"}
    return Settings.model_validate({"task": told, "policy": POLICY | policy, "rounds": 1, "device": "cpu"})


def learner(**policy: Any) -> Learner:
    return learner_at(settings(**policy), PLACE)


def test_my_model_is_of_the_students_network_and_the_local_one_of_the_tasks() -> None:
    plain, apart = learner(), learner(student_model="cnn")
    assert apart.layout != plain.layout
    assert apart.fresh(0).layout == apart.layout
    assert apart.fresh(0, local=True) == plain.fresh(0)
    assert plain.fresh(0, local=True) == plain.fresh(0)


def test_the_local_model_teaches_and_the_student_is_measured() -> None:
    me = learner(student_model="cnn")
    f_k = me.train(me.fresh(0, local=True), seed=0, epochs=5)
    z = me.predict(f_k, seed=0)
    taught = me.distill(me.fresh(1), seed=0, teacher=z, epochs=10)
    assert f_k.layout != taught.layout == me.layout
    before, after = me.score([me.fresh(1), taught], split="test")
    assert after.accuracy > before.accuracy + 0.2
    assert sum(map(sum, me.confusion(taught) or [])) == after.samples


def test_models_of_no_network_of_the_node_are_refused() -> None:
    with pytest.raises(LayoutMismatch):
        learner().score([learner(student_model="cnn").fresh(0)])


@pytest.mark.parametrize(("name", "says"), [("cnnn", "did you mean 'cnn'"), ("resnet", "known: cnn, mlp")])
def test_a_network_that_the_task_does_not_have_is_one_line(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        learner(student_model=name)


def test_a_swarm_ends_with_students_and_tells_how_good_their_teacher_was(tmp_path: Path) -> None:
    simulate(settings(student_model="cnn", epochs=20, student_epochs=30), nodes=4, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    ends = [row for row in rows if row["event"] == "round"]
    assert len(ends) == 4
    assert all(row["test_accuracy"] > 0.5 and row["ensemble"] > 0.5 for row in ends)
    assert len({row["ensemble"] for row in ends}) == 1  # one teacher


def test_predictions_are_scored_by_the_labels_of_the_auxiliary_samples() -> None:
    aux = blobs(30, seed=9)
    known, unknown = student(auxiliary=aux.x, auxiliary_labels=aux.y), student(auxiliary=aux.x)
    assert known.predictions is not None
    rows = np.eye(3, dtype=np.float32)[aux.y.numpy()]
    rows[:6] = rows[:6][:, [1, 2, 0]]  # six are wrong
    said = predictions.pack(known.predictions, rows)
    (score,) = known.score([said])
    assert score.accuracy == pytest.approx(0.8)
    assert score.samples == 30
    assert isnan(unknown.score([said])[0].accuracy)


def test_labels_of_another_number_of_samples_are_one_line() -> None:
    aux = blobs(30, seed=9)
    with pytest.raises(TaskError, match="not of equal length"):
        student(auxiliary=aux.x, auxiliary_labels=aux.y[:-1])
