"""The demo's settings: what suits a small swarm, and the user's word over it."""

from __future__ import annotations

import pytest

from pfl_node.policies import POLICIES, configure, load_policy
from pfl_node.swarm.demo import ROUNDS, demo_settings
from tests.unit.swarm.made_swarms import settings


def test_without_a_word_of_the_user_the_demo_decides() -> None:
    made = demo_settings(settings(), 12)
    assert made.rounds == ROUNDS
    assert made.policy.options["T"] < ROUNDS
    assert made.policy.options["delta"] < 1


def test_the_users_word_wins() -> None:
    said = settings(rounds=7, policy={"name": "pens", "T": 6, "delta": 2.0}, task={"name": "mine.py:f", "a": 1})
    made = demo_settings(said, 12)
    assert (made.rounds, made.policy.options["T"], made.policy.options["delta"]) == (7, 6, 2.0)
    assert made.policy.options["n_sampled"] == 6
    assert made.task == said.task


@pytest.mark.parametrize("rounds", [1, 2, 5, 30, 500])
def test_with_any_number_of_rounds_pens_gets_to_its_neighbours_and_facade_to_its_heads(rounds: int) -> None:
    pens = demo_settings(settings(rounds=rounds), 12).policy.options
    facade = demo_settings(settings(rounds=rounds, policy={"name": "facade"}), 12).policy.options
    assert 1 <= pens["T"] <= rounds
    assert 1 <= facade["warmup"] <= max(1, rounds - 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [1, 2, 12])
def test_the_policy_takes_what_the_demo_gives_it(policy: str, nodes: int) -> None:
    options = demo_settings(settings(policy={"name": policy}), nodes).policy.options
    configure(load_policy(policy), options)


def test_a_policy_of_the_users_own_is_left_as_it_is() -> None:
    said = settings(policy={"name": "mine.py:Mine", "speed": 3})
    assert demo_settings(said, 12).policy == said.policy


def test_a_single_node_does_not_wait_for_others() -> None:
    assert demo_settings(settings(), 1).policy.options["quiet"] < 0.1
    assert demo_settings(settings(policy={"name": "pens", "quiet": 3.0}), 1).policy.options["quiet"] == 3.0
