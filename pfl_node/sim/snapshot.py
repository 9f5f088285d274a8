"""The serializable state of a simulated node between two segments of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pfl_node.errors import StoreError
from pfl_node.model import Layout
from pfl_node.policies.base import Policy
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.store.policy_state import freeze
from pfl_node.types import Offer, PeerId

State = Literal["away", "up", "crashed", "left"]
FROM_SETTINGS = ("claim", "discreet", "correlated")  # attributes set from the settings
BASE = ("me", "cfg", "model", "rounds", "seed", "rng", "samples", "truth", "round", *FROM_SETTINGS)


@dataclass(frozen=True, slots=True)
class SegmentMark:
    """The position of a run between two segments."""

    round: int = 0  # the next round
    now: float = 0.0  # virtual seconds
    wall: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    state: State
    at: float  # virtual time at which it was held
    policy: Mapping[str, Any] | None  # the policy's snapshot
    node: Mapping[str, Any] | None  # the node's own state
    disk: Mapping[str, Any]
    traffic: Mapping[str, Any]  # the fields of a Traffic
    calls: Mapping[PeerId, int]  # the number of the last call to each peer
    jobs: int
    rounds: list[tuple[float, int]]  # time from which each announced round is known, round
    mail: list[tuple[float, Offer, int]]  # received while held: time, model, bytes

    def save(self, path: Path, layout: Layout, **facts: str) -> None:
        values = {name: getattr(self, name) for name in self.__slots__}
        save_checkpoint(path, values, layout, metadata=None, **facts)

    @classmethod
    def load(cls, path: Path, learner: LearnerPort, **facts: str) -> NodeSnapshot:
        found = load_checkpoint(path, learner.layout, learner.predictions, **facts)
        assert found is not None
        return cls(**found)


def may_be_held(policy: type[Policy]) -> bool:
    """Is the result the same if each node is held and resumes at that time? In lockstep, a peer that is ahead
    pushes only models of future rounds; but a fetch would return its newer model."""
    return policy.solitary or (policy.lockstep and not policy.pulls)


def attributes(policy: Policy) -> dict[str, Any]:
    """The policy's attributes that its snapshot does not contain. A restart may lose them; a segment must keep
    them."""
    found = {}
    for name, value in vars(policy).items():
        if name in (*BASE, *policy.keeps):
            continue
        try:
            freeze(value)
        except StoreError:
            continue
        found[name] = value
    return found
