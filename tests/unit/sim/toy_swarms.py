"""Runs small simulated swarms of toy learners and reads their journals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.node.ports import Plan
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Fault
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.sim.node_process import Process
from pfl_node.sim.simulation import Simulation
from pfl_node.steps import Average, Gather, Peers, Report, Send, Train
from pfl_node.types import PeerId
from tests.toy import ToyLearner

A, B, C, D = (PeerId(f"n00{i}") for i in range(4))
EVEN = Costs(speeds=(1.0, 1.0), jitter=0.0, latency_jitter=0.0, start=0.0)  # no randomness


class Together(Policy):
    """Train, send to all, average all offers."""

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            peers = await Peers()
            taken = await Send(peers, self.model, round=t)
            offers = await Gather(peers, t)
            self.model = await Average(self.model, [o.model for o in offers])
            await Report(t, self.model, {"sent": taken, "got": [o.sender for o in offers]})


@dataclass
class Ran:
    """A swarm after its run."""

    swarm: Simulation
    text: bytes

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, event: str, node: PeerId | None = None) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["event"] == event and node in (None, r["node"])]

    def node(self, id: PeerId) -> Process:
        return self.swarm.world.nodes[id]

    @property
    def seconds(self) -> float:
        return self.swarm.virtual_seconds


def toy(index: int, node: PeerId) -> LearnerPort:
    """Two clusters, around -1 and 1."""
    return ToyLearner(point=(-1.0, 1.0)[index % 2], cluster=index % 2)


def ran(
    folder: Path,
    policy: type[Policy],
    *,
    nodes: int = 3,
    rounds: int | None = 3,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    costs: Costs = EVEN,
    settings: Settings | None = None,
    options: Iterable[tuple[str, Any]] = (),
) -> Ran:
    told = (settings or Settings()).model_copy(update={"rounds": rounds, "seed": seed})
    path = folder / "journal.jsonl"
    plan = Plan(policy, configure(policy, dict(options)))
    with EventJournal(path) as journal:
        swarm = Simulation(told, plan, toy, nodes=nodes, journal=journal, faults=faults, costs=costs)
        swarm.run()
    return Ran(swarm, path.read_bytes())
