"""Knobs that fit the size of a simulation."""

from __future__ import annotations

import pytest
from pydantic import Field

from pfl_node.lab.policy_comparison import Fit, fit
from pfl_node.policies import POLICIES, configure
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.gossip import Gossip


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("local", {}),
        ("gossip", {"n_peers": 5}),
        ("pens", {"n_peers": 5, "T": 20}),
        ("random", {"m_selected": 5}),
        ("greedy", {"m_selected": 1, "m_sample": 5}),
        ("el", {}),
        ("deprl", {"core_steps": 0}),
        ("fedavg", {"C": 0.5}),
    ],
)
def test_twenty_nodes_and_forty_rounds_need_less_than_the_papers_have(name: str, knobs: dict[str, float]) -> None:
    assert fit(POLICIES[name], 20, 40) == Fit(knobs)


@pytest.mark.parametrize("name", POLICIES)
def test_at_the_papers_own_size_all_is_as_they_have_it(name: str) -> None:
    assert fit(POLICIES[name], 100, 400).knobs == {}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("nodes", "rounds"), [(1, 1), (2, 1), (3, 7), (8, 4), (20, 40), (1000, 1200)])
def test_what_fits_is_allowed_at_any_size(name: str, nodes: int, rounds: int) -> None:
    configure(POLICIES[name], fit(POLICIES[name], nodes, rounds).knobs)


def test_what_is_done_in_one_shot_has_one_round() -> None:
    assert fit(POLICIES["feded"], 20, 40).rounds == 1
    assert fit(POLICIES["feded"], 20, 1).rounds is None


class Other(Policy):
    """Its T has nothing to do with anybody's search."""

    class Config(PolicyConfig):
        T: int = Field(200, description="degrees")

    async def main(self) -> None: ...


class Heir(Gossip):
    """Gossip with a knob of its own."""

    class Config(Gossip.Config):
        T: int = Field(200, description="degrees")


def test_a_users_own_knobs_stay_and_those_he_inherits_fit() -> None:
    assert fit(Other, 20, 40) == Fit()
    assert fit(Heir, 20, 40) == Fit({"n_peers": 5})
