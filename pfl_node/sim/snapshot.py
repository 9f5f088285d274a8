"""The serializable state of a simulated node between two segments of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pfl_node.errors import StoreError
from pfl_node.model import Layout, Model
from pfl_node.policies.base import Policy
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.sim.memory_store import Disk
from pfl_node.sim.network import Traffic
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.store.policy_state import freeze
from pfl_node.types import Offer, PeerId

State = Literal["away", "up", "crashed", "left"]
BASE = ("me", "cfg", "model", "rounds", "seed", "rng", "samples", "truth", "round", "claim", "discreet")
OFFER, PREDICTIONS = "$offer", "$predictions"


@dataclass(frozen=True, slots=True)
class SegmentMark:
    """The position of a run between two segments."""

    round: int = 0  # the next one
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
    traffic: Mapping[str, Any]
    calls: Mapping[PeerId, int]  # the number of the last call to each peer
    jobs: int
    rounds: list[tuple[float, int]]  # time from which each announced round is known, round
    mail: list[tuple[float, Offer, int]]  # received while held: time, model, bytes

    @property
    def traffic_so_far(self) -> Traffic:
        return Traffic(**{**self.traffic, "refused": Counter(self.traffic["refused"])})

    def save(self, path: Path, layout: Layout, **facts: str) -> None:
        values = {name: getattr(self, name) for name in self.__slots__}
        save_checkpoint(path, pack(values), layout, told=None, **facts)

    @classmethod
    def load(cls, path: Path, learner: LearnerPort, **facts: str) -> NodeSnapshot:
        found = load_checkpoint(path, learner.layout, **facts)
        return cls(**unpack(found, learner))


def goes_on_alone(policy: type[Policy]) -> bool:
    """May each node resume at the time at which it was held? In lockstep, a peer that is ahead sends it only
    models for future rounds."""
    return policy.lockstep or policy.solitary


def attributes(policy: Policy) -> dict[str, Any]:
    """A policy's attributes outside its snapshot: a restart may lose them, the end of a segment must not."""
    found = {}
    for name, value in vars(policy).items():
        if name in (*BASE, *policy.keeps):
            continue
        try:
            freeze(pack(value))
        except StoreError:
            continue
        found[name] = value
    return found


def written(disk: Disk) -> dict[str, Any]:
    """The contents of a node's disk without the checkpoint."""
    return {"reports": disk.reports, "told": disk.told, "figures": disk.figures, "privacy": disk.privacy.dump()}


def plain_traffic(traffic: Traffic) -> dict[str, Any]:
    return {**asdict(traffic), "refused": dict(traffic.refused)}


def pack(value: Any) -> Any:
    """Convert to the types a checkpoint can hold: containers, numbers, strings and models."""
    match value:
        case Offer():
            said = (value.sender, value.round, value.tag, value.samples, dict(value.notes))
            return (OFFER, *said, pack(value.model))
        case Model() if value.layout.part == "predictions":
            return (PREDICTIONS, value.vector.tolist())
        case Counter():
            return value
        case dict():
            return {key: pack(item) for key, item in value.items()}
        case list():
            return [pack(item) for item in value]
        case tuple():
            return tuple(pack(item) for item in value)
    return value


def unpack(value: Any, learner: LearnerPort) -> Any:
    """The inverse of `pack`."""
    match value:
        case (str(kind), sender, round, tag, samples, notes, model) if kind == OFFER:
            return Offer(sender, unpack(model, learner), round, tag, samples, notes)
        case (str(kind), numbers) if kind == PREDICTIONS and learner.predictions:
            return Model(learner.predictions, np.array(numbers, np.float32))
        case Counter():
            return value
        case dict():
            return {key: unpack(item, learner) for key, item in value.items()}
        case list():
            return [unpack(item, learner) for item in value]
        case tuple():
            return tuple(unpack(item, learner) for item in value)
    return value
