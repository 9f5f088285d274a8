"""Nodes whose labels are skewed, tested on their own mix of classes or on the same for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.lab import comparison_table
from pfl_node.lab.policy_comparison import PolicyComparison
from pfl_node.learning.partition import same_mix
from pfl_node.learning.task import Place, Task
from pfl_node.learning.tasks import load_task, mix_of
from pfl_node.settings import Settings, TaskSettings

NODES = 5


def task(index: int, **options: Any) -> Task:
    told = TaskSettings.model_validate({"name": "digits", "angles": [0], "alpha": 0.3, **options})
    return load_task(told, Place(index=index, nodes=NODES, seed=0, node_id=f"n{index}"))


def shares(y: Any) -> Any:
    return np.bincount(y, minlength=10) / len(y)


def test_on_its_own_mix_a_node_is_tested_on_the_classes_that_it_trains_on() -> None:
    for index in range(NODES):
        mine, all_ = task(index, test_mix="own"), task(index)
        assert mine.test is not None
        assert all_.test is not None
        assert np.abs(shares(mine.test.y) - shares(mine.train.y)).max() < 0.05
        assert len(mine.test.y) < len(all_.test.y)
        assert np.array_equal(mine.train.y, all_.train.y)


def test_the_uniform_mix_is_the_same_at_all_nodes() -> None:
    tests = [task(index).test for index in range(NODES)]
    assert all(np.array_equal(test.y, tests[0].y) for test in tests)
    assert shares(task(0).test.y).max() < 0.15


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_as_many_as_can_be_are_taken_and_none_twice(like: list[int]) -> None:
    labels = np.arange(200) % 5
    which = same_mix(labels, np.array(like))
    assert len(set(which.tolist())) == len(which)
    wanted = np.bincount(like, minlength=5) / len(like)
    taken = np.bincount(labels[which], minlength=5)
    assert taken.max() == 40  # all of the class that is used up first
    assert np.abs(taken - wanted * len(which)).max() <= 3


def test_a_class_that_nobody_can_be_tested_on_is_one_line() -> None:
    with pytest.raises(ConfigError, match="too few test samples of a class"):
        same_mix(np.zeros(9, np.int64), np.array([1, 1]))


def test_another_word_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"task.test_mix = 'mine': there is no such name"):
        task(0, test_mix="mine")


@pytest.mark.parametrize(
    ("told", "mix"),
    [
        ({"name": "digits"}, None),
        ({"name": "digits", "alpha": 0.1}, "uniform"),
        ({"name": "digits", "alpha": 0.1, "test_mix": "own"}, "own"),
        ({"name": "emnist"}, "uniform"),
        ({"name": "mnist", "partition": "shards", "test_mix": "own"}, "own"),
        ({"name": "mnist", "partition": "iid"}, None),
        ({"name": "my.py:task"}, None),
    ],
)
def test_where_labels_are_skewed_the_table_says_what_was_tested(told: dict[str, Any], mix: str | None) -> None:
    settings = Settings.model_validate({"task": told, "rounds": 1})
    assert mix_of(settings.task) == mix
    words = {None: "on test data;", "own": "each node's own mix of classes;", "uniform": "the same mix of classes"}
    assert words[mix] in comparison_table.legend(PolicyComparison.plan(settings, (), nodes=4))
