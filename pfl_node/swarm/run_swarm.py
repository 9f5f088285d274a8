"""`pfl_node.swarm`: a swarm of real nodes on this machine, from a Python program."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_node import plugin
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.settings.load import check_count, settings_of_call
from pfl_node.sim.outcome import NodeRecord, Outcome
from pfl_node.sim.run_result import NodeModels, RunResult
from pfl_node.sim.worker_process import WorkerProcess
from pfl_node.swarm.messages import directory, node_name
from pfl_node.swarm.swarm_process import SwarmOrder
from pfl_node.tracking.tracking import check_track, report_of
from pfl_node.types import Headline

if TYPE_CHECKING:
    from torch import nn

Named = str | Mapping[str, Any]  # a name, or a name and options
GRACE = 30.0  # seconds that the nodes have to stop after Ctrl-C


def swarm(
    task: Named | Callable[..., Any] = "digits",
    policy: Named | type[Policy] = "el",
    nodes: int = 8,
    rounds: int = 20,
    seed: int = 0,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> RunResult:
    """Run many real nodes on this machine, in a few processes, over gRPC; returns when all rounds are done.

    The arguments are those of `simulate`. A task or policy must be at the top level of a module or file, because
    other processes import it. `out` keeps the nodes' directories; otherwise they are deleted with the result.
    """
    check_count("swarm()", "nodes", nodes)
    settings = {"log": {"level": "warning"}, **settings}
    given = settings_of_call("swarm()", task=task, policy=policy, rounds=rounds, seed=seed, **settings)
    check_track(given)
    for place in (given.task.name, given.policy.name):
        plugin.check_importable(place)
    kept = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="pfl-swarm-")) / "swarm"
    with directory(kept) as folder, ThreadPoolExecutor(1) as thread:  # a notebook has a loop in this thread
        order = SwarmOrder(given, nodes, workers, folder.absolute())
        stop = asyncio.Event()
        loop = asyncio.new_event_loop()
        work = thread.submit(loop.run_until_complete, _run(order, stop))
        try:
            work.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(stop.set)
            work.result()
        finally:
            loop.close()
    result = result_of(kept, given, nodes)
    if out is None:
        weakref.finalize(result.models, shutil.rmtree, kept.parent, ignore_errors=True)
    return result


async def _run(order: SwarmOrder, stop: asyncio.Event) -> None:
    worker = await WorkerProcess.spawn("pfl_node.swarm.swarm_process", "the swarm")
    stopping = asyncio.create_task(_stop_when(stop, worker))
    try:
        worker.order(order.dump())
        async for _ in worker.messages():
            pass
    finally:
        stopping.cancel()
        await worker.close(grace=GRACE)


async def _stop_when(stop: asyncio.Event, worker: WorkerProcess) -> None:
    await stop.wait()
    worker.stop()


def result_of(out: Path, settings: Settings, nodes: int) -> RunResult:
    """The result of a swarm from its files."""
    from pfl_node.learning.personal_model import load

    summary = json.loads((out / "summary.json").read_text())
    records = tuple(map(_record, summary["per_node"]))
    policy, task, refused = settings.policy.name, settings.task.name, summary["refused"]
    outcome = Outcome(policy, task, settings.seed, settings.rounds, records, refused)
    names = [node_name(index) for index in range(nodes)]

    def build(node: str) -> nn.Module:
        return load(out / "nodes" / node)

    rows = [row for node in names for row in _rounds(out / "nodes" / node / "journal.jsonl", node)]
    return RunResult(outcome, rows, NodeModels(names, build))


def _record(row: dict[str, Any]) -> NodeRecord:
    known = {f.name: row[f.name] for f in fields(NodeRecord) if f.name in row}
    if "headline" in known:
        known["headline"] = Headline(**known["headline"])
    return NodeRecord(**known)


def _rounds(journal: Path, node: str) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError):
        for line in journal.read_text().splitlines():
            row = json.loads(line)
            if row["event"] == "round":
                report = report_of(node, node, "round", row)
                yield {"node": node, "round": report.round, **report.figures}
