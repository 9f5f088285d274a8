"""Swarms, slots and reports without a process."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from pfl_node.settings import Settings
from pfl_node.sim.outcome import NodeRecord
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def swarm(nodes: int, *, rounds: int | None = 10, workers: int = 2, **given: Any) -> Swarm:
    """One that was never started."""
    return Swarm(settings(rounds=rounds, **given), nodes=nodes, workers=workers, out=Path())


def started(made: Swarm) -> Swarm:
    made.imported = len(made.shares)
    for slot in made.slots:
        slot.node, slot.cluster = f"id{slot.index}", int(slot.index >= made.nodes / 2)
    made.ready.set()
    return made


def after(made: Swarm, rounds: int, **said: Any) -> Swarm:
    """Every node has done so many rounds and says this."""
    for slot in made.slots:
        slot.round, slot.last_round = rounds, {"val_accuracy": 0.5, **said}
    return made


def outcome(*nodes: NodeRecord, policy: str = "pens", rounds: int | None = 10, **given: Any) -> SwarmOutcome:
    start: dict[str, Any] = {"task": "digits", "seed": 0, "refused": {}, "failed_calls": {}}
    return SwarmOutcome(
        policy=policy, rounds=rounds, nodes=nodes, **{**start, "wall_seconds": 12.3, "cpu_seconds": 1.0, **given}
    )


def record(index: int, cluster: int | None = 0, **given: Any) -> NodeRecord:
    return NodeRecord(
        f"node-{index:03d}", cluster=cluster, **{"state": "done", "rounds": 10, "accuracy": 0.9, **given}
    )


def drawn(what: RenderableType, *, width: int = 100, height: int = 50, terminal: bool = False) -> str:
    """What a person sees, without the colours."""
    console = paper(width=width, height=height, terminal=terminal)
    console.print(what)
    return text(console)


def paper(*, width: int = 100, height: int = 50, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=terminal, record=True, highlight=False
    )


def text(console: Console) -> str:
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())
