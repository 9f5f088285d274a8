"""`pfl_node.simulate`: a simulation from a Python program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_node import plugin
from pfl_node.policies.base import Policy
from pfl_node.settings.load import check_count, settings_of_call
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.outcome import Summary
from pfl_node.sim.run_result import NodeModels, RunResult
from pfl_node.sim.simulate import simulate as simulate_settings
from pfl_node.tracking.tracking import Observe, check_track, report_of
from pfl_node.types import PeerId, RoundReport

if TYPE_CHECKING:
    from torch import nn

    from pfl_node.sim.simulation import Simulation

Named = str | Mapping[str, Any]  # a name, or a name and options
OnRound = Callable[[RoundReport], object]


def simulate(
    task: Named | Callable[..., Any] = "digits",
    policy: Named | type[Policy] = "el",
    nodes: int = 20,
    rounds: int = 20,
    seed: int = 0,
    *,
    faults: Sequence[str] = (),
    on_round: OnRound | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    **settings: Any,
) -> RunResult:
    """Simulate a swarm in virtual time; the same arguments give the same result.

    `task` and `policy` are names, functions or classes, or mappings with `name` and options. Other settings are
    given by section: `train={"lr": 0.1}`. `on_round` is called with a RoundReport after every round of a node;
    `faults` are texts such as "crash:n003@12.5"; `out` is a directory for journal and summary.
    """
    check_count("simulate()", "nodes", nodes)
    check_count("simulate()", "jobs", jobs)
    given = settings_of_call("simulate()", task=task, policy=policy, rounds=rounds, seed=seed, **settings)
    check_track(given)
    if jobs > 1:
        plugin.check_importable(given.task.name)
    rows: list[dict[str, Any]] = []
    ended: list[Simulation] = []
    run = partial(
        simulate_settings,
        given,
        nodes=nodes,
        faults=parse_faults(tuple(faults), node_ids(nodes)),
        out=None if out is None else Path(out),
        jobs=jobs,
        watch=lambda node: _collector(node, rows, on_round),
        ended=ended.append,
    )
    summary = _run_in_thread_if_loop(run)
    return RunResult(summary, rows, _models(ended[0]))


def _run_in_thread_if_loop(run: Callable[[], Summary]) -> Summary:
    """A notebook has a running event loop in its thread: then simulate in another one."""
    if asyncio._get_running_loop() is None:
        return run()
    with ThreadPoolExecutor(1, "simulation") as thread:
        return thread.submit(run).result()


def _collector(node: PeerId, rows: list[dict[str, Any]], on_round: OnRound | None) -> Observe:
    def observe(event: str, data: Mapping[str, Any]) -> None:
        if event != "round":
            return
        report = report_of(node, node, event, data)
        rows.append({"node": node, "round": report.round, **report.figures})
        if on_round:
            on_round(report)

    return observe


def _models(swarm: Simulation) -> NodeModels:
    learners: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for id, process in swarm.world.nodes.items():
        node = process.node
        if node is not None and node.policy is not None and node.recorder is not None:
            learners[id] = process.learner
            found[id] = (node.policy.model, node.recorder.local())

    def build(id: str) -> nn.Module:
        from pfl_node.learning.personal_model import fill

        model, state = found[id]
        tensors = learners[id].tensors(*((model,) if state is None else (model, state)))
        return fill(learners[id].module(), tensors)

    return NodeModels(found, build)
