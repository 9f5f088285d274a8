"""A worker process of a swarm (`sim/worker_process.py`): some of its nodes in one event loop with one trainer."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.ports import Job
from pfl_node.node.recorder import checkpoint_facts
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.ops.status import details_of
from pfl_node.sim.attacks.malicious import role_of
from pfl_node.sim.worker_process import ParentPipe, leave, serve_once
from pfl_node.store.checkpoint import save_checkpoint
from pfl_node.store.journal import Journal
from pfl_node.swarm.messages import TraceSpec, WorkerSpec, events_path, state_path
from pfl_node.types import PeerId

OnSaved = Callable[[dict[str, Any]], None]
GRACE = 20.0  # seconds to shut down; a parent that is alive kills the process earlier


class Trace:
    """The records of one node. Pass every row of its journal to `observe`."""

    def __init__(self, spec: TraceSpec, node: DaemonNode, index: int, out: Path, on_saved: OnSaved) -> None:
        self._spec = spec
        self._node = node
        self._index = index
        self._out = out
        self._on_saved = on_saved
        self._file = events_path(out, node.name)
        self._journal = Journal(self._file)
        self._accepted: Counter[PeerId] = Counter()
        self._part: int | None = None  # the last saved one
        self._saves: list[asyncio.Task[None]] = []

    def observe(self, event: str, data: Mapping[str, Any]) -> None:
        """Called right after the node has written the row, before it does anything else."""
        match event, data:
            case "started", {"round": int(round)}:
                self._part = round // self._spec.every
                self._write(event, data)
            case "round", {"round": int(round)}:
                self._round(round, data)
            case _:
                self._write(event, data)

    async def close(self) -> None:
        """Wait until all states are on disk. Raises the first error of saving one."""
        try:
            await asyncio.gather(*self._saves)
        finally:
            self._journal.close()

    def _round(self, round: int, data: Mapping[str, Any]) -> None:
        if self._spec.messages:
            for sender in (self._node.host.received - self._accepted).elements():
                self._write("taken", {"from": sender, "call": "send", "round": round})
            self._accepted = Counter(self._node.host.received)
        details = details_of(self._node)
        self._write("round", {**data, "bytes_sent": self._spec.sent[self._index] + details["bytes_sent"]})
        policy = self._node.policy
        assert policy is not None
        if policy.rounds is None or policy.round + 1 < policy.rounds:
            self._save_state(policy.round + 1, details)

    def _save_state(self, after: int, details: dict[str, Any]) -> None:
        """At a Report the state is consistent: take a snapshot now, write it in the background."""
        part = after // self._spec.every
        if self._part is not None and part <= self._part:
            return
        self._part = part
        assert self._node.policy is not None
        facts = {"part": part, "index": self._index, "round": after, "details": details}
        save = self._save(part, self._node.policy.snapshot(), {**facts, "rows": self._file.stat().st_size})
        self._saves.append(asyncio.create_task(save))

    async def _save(self, part: int, state: Mapping[str, Any], facts: dict[str, Any]) -> None:
        node, path = self._node, state_path(self._out, part, self._node.name)
        assert node.policy is not None
        assert node.recorder is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        same = checkpoint_facts(node.settings, node.policy)
        layout = node.recorder.learner.layout
        await asyncio.to_thread(lambda: save_checkpoint(path, state, layout, metadata=None, **same))
        self._on_saved(facts)

    def _write(self, event: str, data: Mapping[str, Any]) -> None:
        now = self._spec.seconds + time.time() - self._spec.began
        self._journal.write(event, {**data, "node": self._node.id}, time=now)


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

        node = DaemonNode(settings, DiskStore.open(settings.data_dir), self.trainer, observe, role_of=role_of)
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
