"""Labels are flipped at malicious places only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import TaskError
from pfl_node.learning.task import Data, Place, Task
from pfl_node.settings import Settings
from pfl_node.sim.attacks.malicious import poisoned

X = np.zeros((4, 2), np.float32)


def task(y: Any) -> Task:
    return Task("mine", model=lambda: None, train=Data(X, y), test=Data(X, y))  # type: ignore[arg-type, return-value]


def told(*kinds: str) -> Settings:
    return Settings.model_validate({"attack": {"kind": kinds, "nodes": [1]}})


def place(index: int | None, nodes: int | None = 3) -> Place:
    return Place(index=index, nodes=nodes, seed=0, node_id="n")


def test_the_training_labels_of_a_bad_place_are_turned_round_and_the_test_data_are_not() -> None:
    y = np.array([0, 1, 2, 2])
    found = poisoned(task(y), told("label_flip"), place(1))
    assert found.train.y.tolist() == [2, 1, 0, 0]
    assert found.test is not None
    assert found.test.y.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("kind", "where"), [("label_flip", place(0)), ("nan", place(1)), ("label_flip", place(None, None))]
)
def test_everywhere_else_they_are_as_they_were(kind: str, where: Place) -> None:
    honest = task(np.array([0, 1, 2, 2]))
    assert poisoned(honest, told(kind), where) is honest


def test_labels_that_are_no_classes_cannot_be_flipped() -> None:
    with pytest.raises(TaskError, match="needs integer labels"):
        poisoned(task(np.array([0.5, 1.5, 2.0, 3.0])), told("label_flip"), place(1))


def test_labels_that_are_read_lazily_cannot_be_flipped() -> None:
    lazy = replace(task(np.array([0, 1])), train=object())
    with pytest.raises(TaskError, match=r"set data\.memory = always"):
        poisoned(lazy, told("label_flip"), place(1))
