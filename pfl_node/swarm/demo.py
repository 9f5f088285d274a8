"""`pfl-node demo`: a small swarm on the embedded digits, beside the same nodes learning alone, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfl_node.settings import PolicySettings, Settings
from pfl_node.swarm.demo_text import next_steps, opening
from pfl_node.swarm.format import terminal
from pfl_node.swarm.swarm_dir import directory

ROUNDS = 30


def knobs(policy: str, nodes: int, rounds: int) -> dict[str, Any]:
    """What suits a dozen nodes on one machine."""
    quiet = 1.0 if nodes > 1 else 0.05  # a single node waits for nobody
    match policy:
        case "pens":
            search = {"n_sampled": 6, "m": 2, "T": max(1, min(20, 2 * rounds // 3))}
            return {**search, "n_peers": 3, "delta": 0.12, "quiet": quiet}
        case "gossip":
            return {"n_peers": 6, "delta": 0.12, "quiet": quiet}
        case "facade":
            return {"warmup": max(1, min(5, rounds // 6))}
    return {}


def demo_settings(settings: Settings, nodes: int) -> Settings:
    """The user's settings, with what suits a small swarm where nothing was said."""
    name, rounds = settings.policy.name, settings.rounds or ROUNDS
    policy = PolicySettings(name=name, **{**knobs(name, nodes, rounds), **settings.policy.options})
    return settings.model_copy(update={"policy": policy, "rounds": rounds})


def run_demo(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    """The swarm, the same nodes alone, the report."""
    settings, console = demo_settings(settings, nodes), terminal()
    with directory(out) as folder:
        console.print(opening(settings, nodes) + "\n", markup=False)

        # These bring gRPC, which takes a while; somebody can read meanwhile.
        from pfl_node.swarm.launch import Run
        from pfl_node.swarm.swarm_report import show_next

        compare = settings.policy.name != "local" and nodes > 1
        run = Run(settings, nodes=nodes, workers=workers, out=folder, compare=compare)
        report = run.go(console, live=live)
        if out:
            report.write(out)
    report.show(console)
    if not report.stopped:
        show_next(next_steps(settings), console)
    return report.code
