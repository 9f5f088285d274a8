"""What the demo says about its nodes is true whatever the user changes."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.swarm.demo import groups, hints, kinds, next_steps, opening
from tests.unit.swarm.made_swarms import record, settings


def digits(**options: Any) -> Any:
    return settings(task={"name": "digits", **options})


def test_by_default_half_of_them_see_the_digits_upside_down() -> None:
    assert groups(digits(), 12) == [(6, "upright"), (6, "upside down")]
    told = opening(digits(), 12)
    assert "12 nodes, each with its own private handwritten digits." in told
    assert "6 see them upright, 6 see them upside down; no node knows which others see them the same way." in told


@pytest.mark.parametrize(
    ("options", "nodes", "expected"),
    [
        ({"angles": [0, 90]}, 5, [(3, "upright"), (2, "turned left")]),
        ({"angles": [90, 450, 0]}, 6, []),  # two clusters that see the same
        ({"angles": "0,270"}, 2, [(1, "upright"), (1, "turned right")]),
        ({"angles": 180}, 2, [(2, "upside down")]),
        ({"angles": [0, 180], "sizes": [5, 1]}, 6, [(5, "upright"), (1, "upside down")]),
        ({"angles": [0, 180], "sizes": [6, 0]}, 6, [(6, "upright")]),
        ({"angles": [0, 180], "sizes": [5, 1]}, 12, []),  # the task will refuse
        ({"angles": [0, 45]}, 12, []),
        ({"angles": "left"}, 12, []),
        ({"angles": []}, 12, []),
    ],
)
def test_the_groups_are_those_that_the_task_will_make(options: dict[str, Any], nodes: int, expected: Any) -> None:
    assert groups(digits(**options), nodes) == expected


def test_the_groups_agree_with_the_clusters_of_the_digits() -> None:
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import load_task

    asked = digits(angles=[0, 90, 180])
    names = kinds(asked)
    places = [Place(index=i, nodes=7, seed=0, node_id="") for i in range(7)]
    clusters = [load_task(asked.task, place).cluster for place in places]
    assert groups(asked, 7) == [(clusters.count(c), name) for c, name in names.items()]


def test_one_kind_of_data_is_not_called_two() -> None:
    assert "private handwritten digits, upside down. Each" in opening(digits(angles=[180]), 4)
    assert "who is who" not in opening(digits(angles=[180]), 4)


def test_of_two_nodes_one_sees_them_upside_down() -> None:
    assert "1 sees them upright, 1 sees them upside down" in opening(digits(), 2)


def test_a_single_node_has_nobody_to_learn_with() -> None:
    told = opening(digits(), 1)
    assert told.startswith("1 node with its own private handwritten digits, upright.")
    assert "no one to learn with" in told
    assert "others" not in told


def test_nothing_is_claimed_about_a_task_of_the_users_own() -> None:
    mine = settings(task={"name": "some/where/hospital.py:ward", "angles": [0, 180]})
    assert kinds(mine) == {}
    assert opening(mine, 3).startswith("3 nodes, each with its own private data of hospital.py:ward. Each scores")


def test_a_policy_of_the_users_own_is_not_explained() -> None:
    text = opening(settings(policy={"name": "mine.py:Mine"}), 4)
    assert text.endswith("no node knows which others see them the same way.")


def test_alone_nobody_would_tell_anybody() -> None:
    assert opening(settings(policy={"name": "local"}), 4).endswith("2 see them upside down. Each learns alone.")


@pytest.mark.parametrize("policy", ["pens", "facade", "gossip", "el", "local"])
def test_the_next_steps_are_not_what_was_just_done(policy: str) -> None:
    steps = next_steps(settings(policy={"name": policy}))
    assert f"pfl-node demo --policy {policy}" not in steps
    assert "docs/write-a-task.md" in steps


def test_who_has_a_task_already_is_told_how_to_go_on_with_it() -> None:
    steps = next_steps(settings(task={"name": "hospital.py:ward"}))
    assert "pfl-node demo --task hospital.py:ward --policy facade" in steps
    assert "pfl-node --task hospital.py:ward" in steps
    assert "docs/write-a-task.md" not in steps


def test_when_nobody_has_chosen_neighbours_the_reason_is_given() -> None:
    nodes = [record(0), record(1)]
    (hint,) = hints(settings(policy={"name": "pens", "T": 30}), nodes)
    assert "policy.T = 30" in hint
    (hint,) = hints(settings(), nodes)
    assert "policy.T = 200" in hint
    assert hints(settings(policy={"name": "gossip"}), nodes) == []
    assert hints(settings(), [record(0, neighbours=()), record(1)]) == []
    assert hints(settings(), [record(0)]) == []
