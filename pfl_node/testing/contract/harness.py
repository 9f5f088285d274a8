"""A policy under trial: swarms of toy learners that follow it, and what they wrote down. Knows no rule."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.settings import PolicySettings, Settings, StoreSettings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Fault, node_ids
from pfl_node.sim.node import SimNode
from pfl_node.sim.simulation import Simulation
from pfl_node.sim.snapshot import Plan
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.testing.contract.small_config import small
from pfl_node.testing.contract.toy_learner import LAYOUT, two_clusters
from pfl_node.types import PeerId

ROUNDS = 8
SWARM = 6  # nodes where something goes wrong
STOPPED = "stopped"  # the event of a policy that ends before its last round because it has learnt enough
HINT = "it keeps too little, or does again what it had done"  # to one who is not the same after a restart
COSTS = Costs(batch=0.5)  # a round takes a second or more, so that faults hit in the middle of it


class Broken(PflError):
    """The policy does not keep the contract."""


@dataclass(frozen=True)
class Ran:
    """A swarm after its run."""

    nodes: Mapping[PeerId, SimNode]
    refused: Mapping[str, int]
    journal: bytes

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.splitlines()]

    def of(self, event: str, node: PeerId | None = None) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["event"] == event and node in (None, r["node"])]

    def rounds(self, node: PeerId) -> list[int]:
        """Those that the node reported."""
        return [r["round"] for r in self.of("round", node)]


class PolicyUnderTest:
    """A policy with its knobs, which are small ones where nothing else is said."""

    def __init__(self, policy: type[Policy], **knobs: Any) -> None:
        self.policy = policy
        self.options = {**small(policy), **knobs}
        self.cfg = configure(policy, self.options)

    def run(
        self,
        nodes: int = SWARM,
        faults: Sequence[Fault] = (),
        *,
        seed: int = 0,
    ) -> Ran:
        """A swarm, to its end. Every Report is a checkpoint, and what restarts comes from the disk."""
        settings = Settings(
            rounds=ROUNDS,
            seed=seed,
            policy=PolicySettings(name=self.policy.__name__),
            store=StoreSettings(checkpoint_every=1),
        )
        plan = Plan(from_disk(self.policy), self.cfg)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            journal = EventJournal(path)
            try:
                swarm = Simulation(
                    settings, plan, two_clusters, nodes=nodes, journal=journal, faults=faults, costs=COSTS
                )
                swarm.run()
            finally:
                journal.close()
            journal.publish()
            return Ran(swarm.world.nodes, swarm.refused(), path.read_bytes())

    def like(self, policy: type[Policy]) -> PolicyUnderTest:
        """The same knobs for a relative."""
        return PolicyUnderTest(policy, **self.options)

    @cached_property
    def undisturbed(self) -> Ran:
        return self.run()

    @cached_property
    def midway(self) -> float:
        """When half of the rounds of a swarm in which nothing goes wrong are done."""
        times = [row["time"] for row in self.undisturbed.of("round")]
        if not times:
            raise Broken("no round was reported, also where nothing goes wrong")
        return float(times[len(times) // 2])

    @cached_property
    def end(self) -> float:
        """When such a swarm is done."""
        return float(self.undisturbed.rows[-1]["time"])


IDS = node_ids(SWARM)


def from_disk(policy: type[Policy]) -> type[Policy]:
    """The same policy, but what it is restored from was a real checkpoint file meanwhile."""

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
