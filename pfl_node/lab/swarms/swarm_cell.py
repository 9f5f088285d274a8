"""A cell of an experiment as a swarm of real nodes, in a process of its own (`sim/run_jobs.py`). On SIGTERM it
kills the swarm."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from pfl_node.errors import ConfigError, PflError
from pfl_node.lab.results_dir import record_environment
from pfl_node.lab.swarms.swarm_checkpoints import NodeMark, SwarmCheckpoints, SwarmMark, combined
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.settings import Settings
from pfl_node.sim.run_jobs import OnProgress
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.simulate import MANY
from pfl_node.sim.worker_process import Message, leave
from pfl_node.swarm.messages import TraceSpec
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome

PATIENCE = 300.0  # seconds; nodes that share cores are slow, and rounds should not continue without them
LOADING = 3600.0  # seconds for all nodes to load; a node that cannot load ends the swarm anyway


def patient(settings: Settings) -> Settings:
    """Timeouts that suit many nodes on few cores. Nodes write no checkpoints: the trace saves their states."""
    patience = max(PATIENCE, settings.round.patience)
    return settings.model_copy(
        update={
            "round": settings.round.model_copy(update={"patience": patience, "least": patience}),
            "start": settings.start.model_copy(update={"wait": max(LOADING, settings.start.wait)}),
            "store": settings.store.model_copy(update={"checkpoint_every": (settings.rounds or 0) + 2}),
        }
    )


class SwarmCell:
    def __init__(self, order: RunOrder, on_progress: OnProgress) -> None:
        assert order.out is not None
        self.order = order
        self.on_progress = on_progress
        self.settings = patient(order.settings)
        self.checkpoints = SwarmCheckpoints(order.out, order.nodes)
        self.began = time.monotonic()
        self.swarm: Swarm | None = None
        self._saved: dict[int, dict[int, Message]] = {}  # part -> node -> its message

    async def run(self) -> dict[str, Any]:
        """The summary, without the nodes."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
        await self.checkpoints.wait_until_free()
        mark = self.checkpoints.resume()
        order, sent = self.order, mark.sent
        trace = TraceSpec(order.segment or 1, order.nodes <= MANY, time.time(), mark.wall, sent)
        self.swarm = swarm = Swarm(
            self.settings, nodes=order.nodes, workers=order.processes, out=self.checkpoints.path, trace=trace
        )
        for slot, before in zip(swarm.slots, mark.nodes, strict=True):
            slot.round = before.round
        swarm.on_event = lambda _: self.on_progress(lambda: progress(swarm))
        swarm.on_saved = lambda message: self._save(mark, message)
        await swarm.run()
        if swarm.stopping:
            leave()
        return self._finish(swarm, mark)

    def _stop(self) -> None:
        """Only the rounds since the last saved state are lost, so no node needs to shut down cleanly."""
        if self.swarm is None:
            leave()
        self.swarm.kill()

    def _save(self, mark: SwarmMark, message: Message) -> None:
        """The swarm has a state once every node has saved its own."""
        part = message["part"]
        saved = self._saved.setdefault(part, {})
        saved[message["index"]] = message
        if len(saved) < self.order.nodes:
            return
        cpu: dict[int, float] = {}
        for one in saved.values():
            cpu[one["worker"]] = max(cpu.get(one["worker"], 0.0), one["cpu"])
        nodes = tuple(
            NodeMark(saved[i]["round"], saved[i]["rows"], combined(before.details, saved[i]["details"]))
            for i, before in enumerate(mark.nodes)
        )
        wall = mark.wall + time.monotonic() - self.began
        self.checkpoints.save(SwarmMark(part, nodes, wall, mark.cpu + sum(cpu.values())))
        self._saved = {number: rest for number, rest in self._saved.items() if number > part}

    def _finish(self, swarm: Swarm, mark: SwarmMark) -> dict[str, Any]:
        ids = self.checkpoints.ids
        for slot, before in zip(swarm.slots, mark.nodes, strict=True):
            if slot.result is None or slot.result["how"] != "done":
                raise PflError(f"{ids[slot.index]} left before its last round")
            slot.result = combined(before.details, slot.result)
        swarm.cpu += mark.cpu
        wall = mark.wall + time.monotonic() - self.began
        outcome = SwarmOutcome.of(swarm, wall, name_of=ids.__getitem__)
        self.checkpoints.finish(outcome)
        summary = outcome.as_dict()
        del summary["per_node"]
        return summary


def progress(swarm: Swarm) -> dict[str, Any]:
    """The rounds of all nodes, the round of the slowest and, until all have started, the number of started
    nodes."""
    rounds = swarm.settings.rounds or 0
    slowest = min(rounds, *(slot.round for slot in swarm.slots))
    started = swarm.started if swarm.started < swarm.nodes else None
    return {"done": swarm.rounds_done, "total": swarm.rounds_total, "slowest": slowest, "started": started}


def run_cell(order: RunOrder, on_progress: OnProgress) -> dict[str, Any]:
    if order.settings.rounds is None:
        raise ConfigError("a run of the lab needs an end: give --set rounds=N")
    cell = SwarmCell(order, on_progress)
    record_environment(cell.checkpoints.out)
    configure_logs(cell.settings.log)
    return run_loop(cell.run())
