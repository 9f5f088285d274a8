"""What the demo tells about its nodes before and after they learn. Says only what follows from the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.sim.outcome import NodeRecord
from pfl_node.swarm.format import plural, short

ANGLES = (0, 180)  # of the digits, where nothing else is said
SEES = {0: "upright", 90: "turned left", 180: "upside down", 270: "turned right"}
WAYS = {
    "local": "Each learns alone.",
    "gossip": "Each sends its model to random others and averages with whatever comes.",
    "pens": "Each tries the models of others on its own data, and in the end learns with those that do well.",
    "el": "Each averages with a few others, new ones in every round.",
    "facade": "All share the core of their models; each picks the head that suits its data.",
}
TRY = {
    "pens": "find the nodes with the same kind of data",
    "facade": "share a core with all, and a head with those of the same kind",
    "gossip": "learn with everybody, whatever their data",
}


def kinds(settings: Settings) -> dict[int, str]:
    """What the clusters of the embedded digits see; nothing for another task."""
    if settings.task.name != "digits":
        return {}
    angles = _numbers(settings.task.options.get("angles", ANGLES))
    names = [SEES.get(a % 360, "") for a in angles]
    # Wrong angles are the task's business, and two clusters that see the same have no names to tell them apart.
    return dict(enumerate(names)) if names and all(names) and len(set(names)) == len(names) else {}


def groups(settings: Settings, nodes: int) -> list[tuple[int, str]]:
    """How many nodes see what, as far as it is known before they start."""
    names = list(kinds(settings).values())
    even = [nodes // len(names) + (c < nodes % len(names)) for c in range(len(names))]
    sizes = _numbers(settings.task.options.get("sizes", even))
    if len(sizes) != len(names) or sum(sizes) != nodes:
        return []
    return [(n, name) for n, name in zip(sizes, names, strict=True) if n]


def opening(settings: Settings, nodes: int) -> str:
    """Who they are and what they will do."""
    what = "handwritten digits" if settings.task.name == "digits" else f"data of {short(settings.task.name)}"
    known, alone = groups(settings, nodes), nodes == 1 or settings.policy.name == "local"
    if len(known) == 1:
        what += f", {known[0][1]}"
    told = [f"{plural(nodes, 'node')}{', each' if nodes > 1 else ''} with its own private {what}."]
    if len(known) > 1:
        parts = ", ".join(f"{n} {'see' if n > 1 else 'sees'} them {name}" for n, name in known)
        told.append(parts + ("." if alone else "; nobody is told who is who."))
    if nodes == 1:
        told.append("There is nobody to learn with: try more, for example -n 12.")
    elif way := WAYS.get(settings.policy.name):
        told.append(way)
    return " ".join(told)


def next_steps(settings: Settings) -> dict[str, str]:
    """Commands and what they show."""
    task = settings.task.name
    own = "" if task == "digits" else f" --task {task}"
    others = {
        f"pfl-node demo{own} --policy {name}": what for name, what in TRY.items() if name != settings.policy.name
    }
    if own:
        return {**others, f"pfl-node{own}": "a single node, which others can join"}
    return {
        **others,
        "pfl-node sim -n 100 --rounds 30 --set policy.T=20": "many nodes, simulated; one seed decides everything",
        "docs/write-a-task.md": "your own data and model",
    }


def hints(settings: Settings, nodes: Sequence[NodeRecord]) -> list[str]:
    """Why the report lacks something that the policy is known for."""
    if settings.policy.name != "pens" or len(nodes) == 1 or any(n.neighbours is not None for n in nodes):
        return []
    search = configure(load_policy("pens"), settings.policy.options).model_dump()["T"]
    return [f"No node has chosen its neighbours yet: that takes policy.T = {search} selections."]


def _numbers(values: Any) -> list[int]:
    """As the digits read them; nothing where they are wrong: the task says so itself."""
    if isinstance(values, str):
        values = values.split(",")
    try:
        return [int(v) for v in (values if isinstance(values, list | tuple) else [values])]
    except (TypeError, ValueError):
        return []
