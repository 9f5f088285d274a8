"""A policy under test: runs it in simulated swarms of toy learners."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError
from pfl_node.node.ports import Plan
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.settings import PolicySettings, Settings, StoreSettings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Fault, node_ids
from pfl_node.sim.node_process import Process
from pfl_node.sim.simulation import Simulation
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.testing.contract.small_config import small
from pfl_node.testing.contract.toy_learner import LAYOUT, two_clusters
from pfl_node.types import PeerId

ROUNDS = 8
SWARM = 6  # nodes of a swarm with faults
STOPPED = "stopped"  # the event of early stopping
HINT = "it keeps too little state, or repeats work after a restart"
COSTS = Costs(batch=0.5)  # a round takes a second or more, so that faults occur in the middle of one


class Broken(PflError):
    """The policy breaks the contract."""


@dataclass(frozen=True)
class Ran:
    nodes: Mapping[PeerId, Process]
    refused: Mapping[str, int]
    journal: bytes

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.splitlines()]

    def of(self, event: str, node: PeerId | None = None) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["event"] == event and node in (None, r["node"])]

    def rounds(self, node: PeerId) -> list[int]:
        return [r["round"] for r in self.of("round", node)]


class PolicyUnderTest:
    def __init__(self, policy: type[Policy], **knobs: Any) -> None:
        self.policy = policy
        self.options = {**small(policy), **knobs}
        self.cfg = configure(policy, self.options)

    def run(self, nodes: int = SWARM, faults: Sequence[Fault] = (), *, seed: int = 0) -> Ran:
        """Every Report writes a checkpoint, and a restarted node is restored from a file."""
        settings = Settings(
            rounds=ROUNDS,
            seed=seed,
            policy=PolicySettings(name=self.policy.__name__),
            store=StoreSettings(checkpoint_every=1),
        )
        plan = Plan(from_disk(self.policy), self.cfg)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            with EventJournal(path) as journal:
                swarm = Simulation(
                    settings, plan, two_clusters, nodes=nodes, journal=journal, faults=faults, costs=COSTS
                )
                swarm.run()
            return Ran(swarm.world.nodes, swarm.refused(), path.read_bytes())

    def like(self, policy: type[Policy]) -> PolicyUnderTest:
        return PolicyUnderTest(policy, **self.options)

    @cached_property
    def undisturbed(self) -> Ran:
        return self.run()

    @cached_property
    def midway(self) -> float:
        """When half of the rounds are done in a swarm without faults."""
        times = [row["time"] for row in self.undisturbed.of("round")]
        if not times:
            raise Broken("no round was reported, even without faults")
        return float(times[len(times) // 2])

    @cached_property
    def end(self) -> float:
        return float(self.undisturbed.rows[-1]["time"])


IDS = node_ids(SWARM)


def from_disk(policy: type[Policy]) -> type[Policy]:
    """A subclass whose state passes through a checkpoint file before it is restored."""

    def restore(self: Policy, state: Mapping[str, Any]) -> None:
        policy.restore(self, through_disk(state))

    return type(policy.__name__, (policy,), {"restore": restore, "__module__": policy.__module__})


def through_disk(state: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(path, state, LAYOUT)
        found = load_checkpoint(path, LAYOUT)
    assert found is not None
    return found
