"""`pfl-node demo`: a small swarm on the embedded digits, beside the same nodes learning alone, with a report."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from pfl_node.errors import PflError
from pfl_node.ops.loop import run_loop
from pfl_node.settings import PolicySettings, Settings
from pfl_node.swarm.report import show
from pfl_node.swarm.run import directory, run_and_watch

ROUNDS = 30
# What suits a dozen nodes on one machine; anything the user says wins.
KNOBS: Mapping[str, Mapping[str, Any]] = {
    "pens": {"n_sampled": 6, "m": 2, "T": 20, "n_peers": 3, "delta": 0.3, "quiet": 4.0},
    "gossip": {"n_peers": 6, "delta": 0.3, "quiet": 4.0},
    "facade": {"warmup": 5},
}


def demo_settings(settings: Settings) -> Settings:
    """The user's settings, with what suits a small swarm where nothing was said."""
    name = settings.policy.name
    options = {**KNOBS.get(name, {}), **settings.policy.options}
    return settings.model_copy(
        update={"policy": PolicySettings(name=name, **options), "rounds": settings.rounds or ROUNDS}
    )


def run_demo(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    """The swarm, the baseline, the report."""
    settings = demo_settings(settings)
    console = Console()
    console.print(
        f"[bold]{nodes} nodes[/bold] with private handwritten digits; half of them see every digit upside down. "
        "Nobody is told who is who.\n"
        "They talk over gRPC on this machine and look for nodes whose data is like theirs.",
        highlight=False,
    )
    with directory(out) as folder:
        outcome = run_and_watch(settings, console, nodes=nodes, workers=workers, out=folder, live=live)
        if out:
            outcome.write(out / "summary.json")
    console.print("The same nodes once more, each alone on its own data:", highlight=False)
    alone = run_loop(_alone(settings, nodes))
    show(outcome, console, local={int(c): a for c, a in alone["accuracy_by_cluster"].items()})
    return 0


async def _alone(settings: Settings, nodes: int) -> dict[str, Any]:
    """`local` with the same data, rounds and seed; in a process of its own, as this one has no torch."""
    local = settings.model_copy(update={"policy": PolicySettings(name="local")})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pfl_node.swarm.alone",
        str(nodes),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await process.communicate(local.model_dump_json().encode())
    if process.returncode:
        raise PflError(f"the baseline ended with code {process.returncode}")
    result: dict[str, Any] = json.loads(answer)
    return result
