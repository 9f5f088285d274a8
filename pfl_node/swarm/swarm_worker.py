"""A worker process of a swarm (`sim/worker_process.py`): some of its nodes in one event loop with one trainer."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.ports import Job
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.ops.status import details_of
from pfl_node.sim.attacks.malicious import role_of
from pfl_node.sim.worker_process import ParentPipe, leave, serve_once
from pfl_node.store.data_dir import DataDir
from pfl_node.swarm.messages import WorkerSpec
from pfl_node.swarm.trace import Trace

GRACE = 20.0  # seconds to shut down; a parent that is alive kills the process earlier


class SwarmWorker:
    def __init__(self, spec: WorkerSpec, parent: ParentPipe) -> None:
        self.spec = spec
        self.parent = parent
        self.trainer = TrainerThread()
        self.nodes: dict[int, DaemonNode] = {}  # those that are listening
        self.traces: dict[int, Trace] = {}  # of an experiment
        self._imports = 0.0  # CPU seconds

    async def run(self) -> None:
        """Until every node has finished or the parent stops the worker."""
        self.parent.on_stop(self.stop)
        await self.trainer.do(lambda _: _import_torch())
        self._imports = time.process_time()
        self.parent.send("imported")
        try:
            for index in self.spec.indices:
                self.nodes[index] = await self._open(index)
            async with asyncio.TaskGroup() as group:
                for index, node in self.nodes.items():
                    group.create_task(self._run(index, node))
            self.parent.send("worked", cpu=self._cpu())
        finally:
            await asyncio.gather(*(node.close() for node in self.nodes.values()))
            await self.trainer.close()

    def _cpu(self) -> float:
        return time.process_time() - self._imports

    def stop(self) -> None:
        if len(self.nodes) < len(self.spec.indices):
            leave()  # no node has trained, and the import of torch cannot be interrupted
        for node in self.nodes.values():
            node.stop()
        last = threading.Timer(GRACE, leave, (1,))
        last.daemon = True
        last.start()

    async def _open(self, index: int) -> DaemonNode:
        settings = self.spec.node_settings(index)

        def observe(event: str, data: Mapping[str, Any]) -> None:
            if trace := self.traces.get(index):
                trace.observe(event, data)
            self.parent.send("node", index=index, what=event, data=data)

        node = DaemonNode(settings, DataDir.open(settings.data_dir), self.trainer, observe, role_of=role_of)
        if self.spec.trace:
            self.traces[index] = Trace(self.spec.trace, node, index, self.spec.out, self._saved)
        await node.start()
        return node

    def _saved(self, facts: dict[str, Any]) -> None:
        self.parent.send("saved", **facts, worker=self.spec.indices[0], cpu=self._cpu())

    async def _run(self, index: int, node: DaemonNode) -> None:
        structlog.contextvars.bind_contextvars(node=node.name)
        how = await node.run()
        if trace := self.traces.get(index):
            await trace.close()
        last = {"confusion": await self._confusion(node) if how == "done" else None, **details_of(node)}
        self.parent.send("result", index=index, how=how, **last)

    async def _confusion(self, node: DaemonNode) -> list[list[int]] | None:
        assert node.policy is not None
        found: list[list[int]] | None = await node.trainer.soon(Job("confusion", node.policy.model))
        return found


def _import_torch() -> None:
    from pfl_node.learning import learner  # noqa: F401


def run(order: str, parent: ParentPipe) -> None:
    spec = WorkerSpec.load(order)
    configure_logs(spec.settings.log)
    run_loop(SwarmWorker(spec, parent).run())


if __name__ == "__main__":
    sys.exit(serve_once(run))
