"""`pfl-node demo`: a small swarm on the embedded digits, compared with the same nodes alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfl_node.policies import configure, load_policy
from pfl_node.settings import PolicySettings, Settings
from pfl_node.sim.outcome import NodeRecord
from pfl_node.swarm.format import plural, short, terminal
from pfl_node.swarm.messages import directory

ANGLES = (0, 180)  # of the digits by default
ORIENTATIONS = {0: "upright", 90: "turned left", 180: "upside down", 270: "turned right"}
DESCRIPTIONS = {
    "local": "Each learns alone.",
    "gossip": "Each sends its model to random peers and averages the models it receives.",
    "pens": "Each scores the models of others on its own data and ends up learning with those that score well.",
    "el": "Each averages with a few peers, different ones in every round.",
    "facade": "All share the core of their models; each picks the head that suits its data.",
}
SUGGESTIONS = {
    "pens": "find the nodes with the same kind of data",
    "facade": "share a core with all nodes, and a head with those of the same kind",
    "gossip": "learn with everyone, whatever their data",
}
ROUNDS = 30


def kinds(settings: Settings) -> dict[int, str]:
    """Names for the clusters of the embedded digits; empty for another task."""
    if settings.task.name != "digits":
        return {}
    angles = _numbers(settings.task.options.get("angles", ANGLES))
    names = [ORIENTATIONS.get(a % 360, "") for a in angles]
    # The task reports wrong angles; two clusters with the same orientation have no distinct names.
    return dict(enumerate(names)) if names and all(names) and len(set(names)) == len(names) else {}


def groups(settings: Settings, nodes: int) -> list[tuple[int, str]]:
    names = list(kinds(settings).values())
    even = [nodes // len(names) + (c < nodes % len(names)) for c in range(len(names))]
    sizes = _numbers(settings.task.options.get("sizes", even))
    if len(sizes) != len(names) or sum(sizes) != nodes:
        return []
    return [(n, name) for n, name in zip(sizes, names, strict=True) if n]


def opening(settings: Settings, nodes: int) -> str:
    what = "handwritten digits" if settings.task.name == "digits" else f"data of {short(settings.task.name)}"
    known, alone = groups(settings, nodes), nodes == 1 or settings.policy.name == "local"
    if len(known) == 1:
        what += f", {known[0][1]}"
    sentences = [f"{plural(nodes, 'node')}{', each' if nodes > 1 else ''} with its own private {what}."]
    if len(known) > 1:
        parts = ", ".join(f"{n} {'see' if n > 1 else 'sees'} them {name}" for n, name in known)
        sentences.append(parts + ("." if alone else "; no node knows which others see them the same way."))
    if nodes == 1:
        sentences.append("There is no one to learn with: try more nodes, for example -n 12.")
    elif way := DESCRIPTIONS.get(settings.policy.name):
        sentences.append(way)
    return " ".join(sentences)


def next_steps(settings: Settings) -> dict[str, str]:
    task = settings.task.name
    own = "" if task == "digits" else f" --task {task}"
    others = {
        f"pfl-node demo{own} --policy {name}": what
        for name, what in SUGGESTIONS.items()
        if name != settings.policy.name
    }
    if own:
        return {**others, f"pfl-node{own}": "a single node, which others can join"}
    return {
        **others,
        "pfl-node sim -n 100 --rounds 30 --set policy.T=20": "many nodes, simulated reproducibly from one seed",
        "docs/write-a-task.md": "your own data and model",
    }


def hints(settings: Settings, nodes: Sequence[NodeRecord]) -> list[str]:
    """Why the report lacks the neighbours that `pens` finds."""
    if settings.policy.name != "pens" or len(nodes) == 1 or any(n.neighbours is not None for n in nodes):
        return []
    search = configure(load_policy("pens"), settings.policy.options).model_dump()["T"]
    return [f"No node has chosen its neighbours yet: that takes policy.T = {search} selections."]


def _numbers(values: Any) -> list[int]:
    """As the digits task reads them; empty if they are wrong, which the task reports."""
    if isinstance(values, str):
        values = values.split(",")
    try:
        return [int(v) for v in (values if isinstance(values, list | tuple) else [values])]
    except (TypeError, ValueError):
        return []


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
