"""Scales the knobs of policies to the size of a simulation. The papers use 100 nodes and 200 to 1,200 rounds: in a
swarm of 20 no node has 20 peers, and a search of 200 selections does not end in 40 rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy

# Below so many nodes, the numbers of rated and merged peers shrink in proportion. With 20 nodes, greedy and
# pens_pull have the values of the thesis for its smallest swarm: the best 1 of 5.
FULL = 80
IN_PROPORTION = ("n_peers", "m_selected", "m_sample")
# At most the number of nodes or rounds divided by this, at least 1.
NODES_PER = {"n_sampled": 2, "m": 8}
ROUNDS_PER = {"T": 2, "selection_rounds": 2, "warmup": 4}  # half of the rounds for the search
CORE_ROUNDS = 400  # with fewer, one batch a round does not train deprl's core: it gets the steps of the settings
CLIENTS = 10  # that train in a round of fedavg: C = 0.1 of the papers' 100 nodes
ONE_SHOT = "feded"  # a single round is the whole algorithm


@dataclass(frozen=True, slots=True)
class Fit:
    """How a policy differs from its defaults and from the run's number of rounds."""

    knobs: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None  # None: those of the run


def fit(cls: type[Policy], nodes: int, rounds: int) -> Fit:
    """For a built-in policy or a subclass of one. Knobs that a user's class adds keep their defaults."""
    kin = [policy for policy in POLICIES.values() if issubclass(cls, policy)]
    known = {name for policy in kin for name in policy.Config.model_fields}
    defaults = {name: cls.Config.model_fields[name].default for name in known & cls.Config.model_fields.keys()}
    most = {name: round(defaults[name] * nodes / FULL) for name in IN_PROPORTION if name in defaults}
    most |= {name: nodes // part for name, part in NODES_PER.items()}
    most |= {name: rounds // part for name, part in ROUNDS_PER.items()}
    knobs: dict[str, Any] = {
        name: max(1, value) for name, value in most.items() if name in defaults and max(1, value) < defaults[name]
    }
    if "core_steps" in defaults and rounds < CORE_ROUNDS:
        knobs["core_steps"] = 0
    if "C" in defaults and (share := min(1.0, CLIENTS / nodes)) > defaults["C"]:
        knobs["C"] = share
    return Fit(knobs, 1 if POLICIES[ONE_SHOT] in kin and rounds > 1 else None)
