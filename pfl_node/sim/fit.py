"""Knobs that fit the size of a simulation. The papers' own are made for 100 nodes and 200 to 1,200 rounds: of 20
nodes none has 20 peers to hear from, and in 40 rounds a search of 200 selections never ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy

ONE_SHOT = "feded"  # all of it is one round; what it learns is not carried to a second one

# A knob is at most the nodes or rounds divided by this, but at least 1; the paper's own value if that is less.
NODES_PER = {
    "n_peers": 4,  # models that are merged
    "m_selected": 4,
    "n_sampled": 2,  # models or peers to choose from
    "m_sample": 2,
    "m": 8,
}
ROUNDS_PER = {
    "T": 2,  # half of the time is for the search, half for its fruits
    "selection_rounds": 2,
    "warmup": 4,
}
CLIENTS = 10  # that train in a round of fedavg: C = 0.1 of the papers' 100


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
    most = {name: max(1, nodes // part) for name, part in NODES_PER.items()}
    most |= {name: max(1, rounds // part) for name, part in ROUNDS_PER.items()}
    knobs: dict[str, Any] = {name: n for name, n in most.items() if name in defaults and n < defaults[name]}
    if "C" in defaults and (share := min(1.0, CLIENTS / nodes)) > defaults["C"]:
        knobs["C"] = share
    return Fit(knobs, 1 if POLICIES[ONE_SHOT] in kin and rounds > 1 else None)
