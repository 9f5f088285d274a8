"""Knobs that fit the size of a simulation. The papers' own are for 100 nodes and 200 to 1,200 rounds: of 20 nodes
none has 20 peers to hear from, and in 40 rounds a search of 200 selections never ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy

# Numbers of peers that are rated or merged shrink as the nodes do, from so many on. With 20 nodes, greedy and
# pens_pull have what their thesis takes for its smallest swarm: the best 1 of 5.
FULL = 80
IN_PROPORTION = ("n_peers", "m_selected", "m_sample")
# Others are at most the nodes or the rounds divided by this, and at least 1.
NODES_PER = {"n_sampled": 2, "m": 8}
ROUNDS_PER = {"T": 2, "selection_rounds": 2, "warmup": 4}  # half of the time is for a search, half for its fruits
CORE_ROUNDS = (
    400  # with less than these, one batch a round is too little for deprl's core: as the settings say, then
)
CLIENTS = 10  # that train in a round of fedavg: C = 0.1 of the papers' 100
ONE_SHOT = "feded"  # all of it is one round


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a policy is to differ from its own defaults and from the run's number of rounds."""

    knobs: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None  # None: as many as all


def fit(cls: type[Policy], nodes: int, rounds: int) -> Fit:
    """For a policy of the table, or one that inherits from it; whatever a user's own knobs mean, they stay."""
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
