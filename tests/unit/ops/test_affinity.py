"""Whom a node learns with, from what its policy says or from what came."""

from __future__ import annotations

import pytest

from pfl_node.ops.observer import PEERS, Affinities


def test_what_the_policy_merged_counts_lately_and_in_all() -> None:
    ties = Affinities()
    ties.round({"from": ["ann", "bob"]}, taken={})
    ties.round({"from": ["ann"]}, taken={})
    assert ties.total == {"bob": 1, "ann": 2}
    assert ties.lately["ann"] == pytest.approx(1.9)
    assert ties.lately["bob"] == pytest.approx(0.9)


def test_a_tie_fades_and_is_forgotten_but_not_in_all() -> None:
    ties = Affinities()
    ties.round({"from": ["ann"]}, taken={})
    for _ in range(60):
        ties.round({"from": ["bob"]}, taken={})
    assert set(ties.lately) == {"bob"}
    assert ties.total == {"ann": 1, "bob": 60}


def test_where_the_policy_does_not_say_it_is_whose_models_came_since_the_last_round() -> None:
    ties = Affinities()
    ties.round({}, taken={"ann": 3})
    ties.round({"head": 1}, taken={"ann": 3, "bob": 1})
    assert ties.total == {"ann": 3, "bob": 1}
    assert ties.lately == pytest.approx({"ann": 0.9, "bob": 1.0})


def test_a_policy_may_say_anything() -> None:
    ties = Affinities()
    ties.round({"from": [1, None, "ann"]}, taken={})
    ties.round({"from": "ann"}, taken={})
    assert set(ties.total) == {"ann"}


def test_the_number_of_peers_is_bounded() -> None:
    ties = Affinities()
    ties.round({"from": [f"peer{n}" for n in range(PEERS + 10)]}, taken={})
    assert len(ties.total) == PEERS
