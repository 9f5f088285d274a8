"""`pfl-node demo`: a small swarm on the embedded digits, compared with the same nodes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfl_node.settings import PolicySettings, Settings
from pfl_node.swarm.demo_text import next_steps, opening
from pfl_node.swarm.format import terminal
from pfl_node.swarm.messages import directory

ROUNDS = 30


def knobs(policy: str, nodes: int, rounds: int) -> dict[str, Any]:
    quiet = 1.0 if nodes > 1 else 0.05  # a single node has no one to wait for
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
    name, rounds = settings.policy.name, settings.rounds or ROUNDS
    policy = PolicySettings(name=name, **{**knobs(name, nodes, rounds), **settings.policy.options})
    return settings.model_copy(update={"policy": policy, "rounds": rounds})


def run_demo(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    settings, console = demo_settings(settings, nodes), terminal()
    with directory(out) as folder:
        console.print(opening(settings, nodes) + "\n", markup=False)

        # Imported after the text is on the screen, because gRPC takes a while to load.
        from pfl_node.swarm.launch import Run
        from pfl_node.swarm.swarm_report import show_next

        compare = settings.policy.name != "local" and nodes > 1
        run = Run(settings, nodes=nodes, workers=workers, out=folder, compare=compare)
        report = run.start(console, live=live)
        if out:
            report.write(out)
    report.show(console)
    if not report.stopped:
        show_next(next_steps(settings), console)
    return report.code
