"""The experiments that come along, as the tests of the papers read them."""

from __future__ import annotations

from functools import cache
from typing import Any

from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.spec import load
from pfl_node.policies import configure, load_policy


@cache
def paper(name: str) -> Experiment:
    return load(name, "paper", seeds=1)


def about(name: str) -> str:
    """Its text on one line."""
    return " ".join(paper(name).about.split())


def figure(name: str, run: str, metric: str, point: str = "") -> float:
    return next(f.value for f in paper(name).figures if (f.run, f.metric, f.point) == (run, metric, point))


def cell(name: str, run: str, point: str = "") -> Cell:
    return next(c for c in paper(name).cells if (c.run, c.point) == (run, point))


def knobs(cell: Cell) -> dict[str, Any]:
    """The policy's options, with the defaults."""
    policy = cell.settings.policy
    return configure(load_policy(policy.name), policy.options).model_dump()
