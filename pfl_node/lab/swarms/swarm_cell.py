"""A process that runs one cell as a swarm of real nodes. Its protocol is in `swarm/process_pipes.py`;
the swarm ends at once when stdin is closed."""

from __future__ import annotations

import sys
import time
from typing import Any

from pfl_node.errors import ConfigError, PflError
from pfl_node.lab.swarms.swarm_checkpoints import SwarmCheckpoints, SwarmMark, joined, standings
from pfl_node.lab.swarms.swarm_runner import SwarmOrder
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.settings import Settings
from pfl_node.sim.simulate import MANY
from pfl_node.swarm.messages import TraceSpec
from pfl_node.swarm.process_pipes import ParentPipe, Said, leave
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome

TELL_EVERY = 0.1  # seconds between two words about progress
PATIENCE = 300.0  # seconds; nodes that share the cores take turns, and nobody is given up for that
LOADING = 3600.0  # seconds for all nodes to load; one that cannot ends the swarm anyway


def for_turns(settings: Settings) -> Settings:
    """What is up to the machine and not to the experiment. States are kept by the trace alone."""
    patience = max(PATIENCE, settings.round.patience)
    return settings.model_copy(
        update={
            "round": settings.round.model_copy(update={"patience": patience, "least": patience}),
            "start": settings.start.model_copy(update={"wait": max(LOADING, settings.start.wait)}),
            "store": settings.store.model_copy(update={"checkpoint_every": (settings.rounds or 0) + 2}),
        }
    )


class SwarmCell:
    """From its folder to its folder."""

    def __init__(self, order: SwarmOrder, parent: ParentPipe) -> None:
        self.order = order
        self.parent = parent
        self.settings = for_turns(order.settings)
        self.shelf = SwarmCheckpoints(order.out, order.nodes)
        self.began = time.monotonic()
        self.swarm: Swarm | None = None
        self._kept: dict[int, dict[int, Said]] = {}  # part -> node -> what it said
        self._told_at = 0.0

    async def run(self) -> None:
        self.parent.on_stop(self._stop)
        await self.shelf.vacant()
        mark = self.shelf.go_on()
        trace = TraceSpec(self.order.every, self.order.nodes <= MANY, time.time(), mark.wall, mark.sent)
        self.swarm = swarm = Swarm(
            self.settings, nodes=self.order.nodes, workers=self.order.processes, out=self.shelf.path, trace=trace
        )
        for seat, standing in zip(swarm.seats, mark.nodes, strict=True):
            seat.round = standing.round
        swarm.on_event = lambda _: self._tell(swarm)
        swarm.on_kept = lambda said: self._keep(mark, said)
        await swarm.run()
        if not swarm.stopping:
            self._finish(swarm, mark)

    def _stop(self) -> None:
        """Nothing is lost but what came after the last state, so nobody needs to leave in order."""
        if self.swarm is None:
            leave()
        self.swarm.kill()

    def _tell(self, swarm: Swarm) -> None:
        if (now := time.monotonic()) >= self._told_at + TELL_EVERY:
            self._told_at = now
            self.parent.tell("progress", progress(swarm))

    def _keep(self, mark: SwarmMark, said: Said) -> None:
        """When all have one, it is the swarm's."""
        part = said["part"]
        kept = self._kept.setdefault(part, {})
        kept[said["index"]] = said
        if len(kept) < self.order.nodes:
            return
        cpu: dict[int, float] = {}
        for word in kept.values():
            cpu[word["worker"]] = max(cpu.get(word["worker"], 0.0), word["cpu"])
        wall = time.monotonic() - self.began
        self.shelf.keep(SwarmMark(part, standings(mark, kept), mark.wall + wall, mark.cpu + sum(cpu.values())))
        self._kept = {number: words for number, words in self._kept.items() if number > part}

    def _finish(self, swarm: Swarm, mark: SwarmMark) -> None:
        for seat, standing in zip(swarm.seats, mark.nodes, strict=True):
            if seat.result is None or seat.result["how"] != "done":
                raise PflError(f"{self.shelf.ids[seat.index]} left before its rounds were done")
            seat.result = joined(standing.details, seat.result)
        swarm.cpu += mark.cpu
        wall = mark.wall + time.monotonic() - self.began
        outcome = SwarmOutcome.of(swarm, wall, called=self.shelf.ids.__getitem__)
        self.shelf.finish(outcome)
        summary = outcome.as_dict()
        del summary["per_node"]
        self.parent.tell("done", {"summary": summary})


def progress(swarm: Swarm) -> dict[str, Any]:
    """Over all nodes, and of the slowest."""
    rounds = swarm.settings.rounds or 0
    slowest = min(rounds, *(seat.round for seat in swarm.seats))
    started = swarm.started if swarm.started < swarm.nodes else None
    return {"done": swarm.rounds_done, "total": swarm.rounds_total, "slowest": slowest, "started": started}


def main() -> int:
    parent = ParentPipe()
    line = parent.order()
    if line is None:
        return 0
    try:
        order = SwarmOrder.load(line)
        if order.settings.rounds is None:
            raise ConfigError("a run of the lab needs an end: give --set rounds=N")
        cell = SwarmCell(order, parent)
        configure_logs(cell.settings.log)
        run_loop(cell.run())
    except BaseException as error:
        return parent.failed(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
