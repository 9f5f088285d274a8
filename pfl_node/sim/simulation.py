"""A simulation of all nodes: it schedules starts and faults, and decides when the run is over."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xxhash import xxh3_64_intdigest

from pfl_node.errors import SimulationStuck
from pfl_node.node.ports import Plan
from pfl_node.settings import Settings, StartSettings
from pfl_node.sim.attacks.malicious import SharedModels, role_of
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.event_loop import MAX_SPINS, LocalTime, SkewedClock, VirtualLoop
from pfl_node.sim.failure_detector import FailureDetector
from pfl_node.sim.faults import Conditions, Crash, Cut, Fault, Join, Partition, Restart, check_faults, node_ids
from pfl_node.sim.inline_trainer import AverageCache
from pfl_node.sim.job_pool import Inline, Jobs
from pfl_node.sim.learner_port import LearnerPort, Load
from pfl_node.sim.network import Fabric
from pfl_node.sim.node_process import Process
from pfl_node.sim.outcome import NodeRecord
from pfl_node.sim.snapshot import NodeSnapshot, SegmentMark
from pfl_node.tracking.tracking import Observe
from pfl_node.types import PeerId

Watch = Callable[[PeerId], Observe | None]  # the observer of a node
SHOWN = 5  # nodes named in an error
STALL = 3600.0  # virtual seconds without a completed round after which a run is aborted
GARBAGE = 100_000  # gc threshold: at the default of 700, collections take a third of the run time
GRACE = 60.0  # virtual seconds after STALL in which a round may still complete


def nobody_watches(node: PeerId) -> Observe | None:  # noqa: ARG001
    return None


@dataclass
class World:
    """The state shared by all nodes: clock, conditions, network, journal and the table of nodes."""

    settings: Settings
    costs: Costs
    clock: VirtualLoop
    conditions: Conditions
    journal: EventJournal
    reported: Callable[[], None]  # called after every Report
    nodes: dict[PeerId, Process] = field(default_factory=dict)
    running: int = 0  # number of nodes that are up
    until: int | None = None  # first round of the next segment: nodes hold before it
    held: int = 0  # number of nodes held there
    averages: AverageCache = field(default_factory=AverageCache)
    jobs: Jobs = field(default_factory=Inline)  # runs training and scoring
    watch: Watch = nobody_watches
    detector: FailureDetector = field(init=False)
    fabric: Fabric = field(init=False)

    def __post_init__(self) -> None:
        self.fabric = Fabric(self)
        self.detector = FailureDetector(self)

    def chance(self, *key: object) -> float:
        """A uniform draw from [0, 1), determined by the seed and the key alone."""
        return xxh3_64_intdigest("/".join(map(str, (self.settings.seed, *key))).encode()) / 2**64

    def message(self, node: PeerId, event: str, **data: Any) -> None:
        self.journal.message(self.clock.now, node, event, **data)

    def reaches(self, a: PeerId, b: PeerId) -> bool:
        """Would a message from a arrive at b now?"""
        node = self.nodes.get(b)
        return node is not None and node.up and not self.conditions.blocked(a, b, self.clock.now)

    def in_touch(self, a: PeerId, b: PeerId) -> bool:
        """Would b answer a probe from a now, directly or through a third node?"""
        if self._answers(a, b):
            return True
        thirds = self.nodes if self.conditions.cuts else ()  # nothing routes around a partition
        return any(self._answers(a, c) and self._answers(c, b) for c in thirds if c not in (a, b))

    def clock_of(self, node: PeerId) -> VirtualLoop | SkewedClock:
        skews = self.conditions.skews(node)
        return SkewedClock(LocalTime(skews), lambda: self.clock.now) if skews else self.clock

    def _answers(self, a: PeerId, b: PeerId) -> bool:
        return self.reaches(a, b) and not self.conditions.blocked(b, a, self.clock.now)

    def after(self, observer: PeerId, seconds: float, action: Callable[[], None]) -> None:
        """Call back when this many seconds have passed on the observer's own clock."""
        clock = self.nodes[observer].clock
        self.clock.at(clock.when(clock.now + seconds), action)

    def notice(self, observer: PeerId, gone: Collection[PeerId]) -> None:
        """The observer has declared these peers dead."""
        self.nodes[observer].peers_lost(gone)


@dataclass(frozen=True, slots=True)
class Progress:
    rounds_done: int  # sum over all nodes
    rounds_total: int
    virtual_seconds: float


class Simulation:
    """Call `run()` once; then read `records`, `refused` and `virtual_seconds`. A segment of a run begins at `mark`
    and ends before the round `until`."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        load: Load,
        *,
        nodes: int,
        journal: EventJournal,
        faults: Sequence[Fault] = (),
        costs: Costs | None = None,
        progress: Callable[[Progress], None] | None = None,
        jobs: Jobs | None = None,
        mark: SegmentMark | None = None,
        until: int | None = None,
        watch: Watch = nobody_watches,
    ) -> None:
        ids, mark = node_ids(nodes), mark or SegmentMark()
        check_faults(faults, ids)
        self.faults = sorted(faults, key=lambda f: f.at)
        self.progress = progress
        self.virtual_seconds = 0.0
        settings = settings.model_copy(update={"start": StartSettings(peers=0)})  # `_found` sets the start
        loop = VirtualLoop(mark.now, max_spins=MAX_SPINS * nodes)
        self.world = World(settings, costs or Costs(), loop, Conditions(faults), journal, reported=self._reported)
        self.world.jobs, self.world.until = jobs or self.world.jobs, until
        self.world.watch = watch
        loop.waiting = lambda: f", but {self._who_waits()}"
        pool = SharedModels() if settings.attack.collude else None
        for index, id in enumerate(ids):
            role = role_of(settings, index, nodes, pool)
            self.world.nodes[id] = Process(id, load(index, id), plan, role, self.world)
        self.held: dict[PeerId, NodeSnapshot] = {}  # snapshots at the end of a segment
        self._began = False
        self._to_come = 0  # joins and restarts that have not happened yet
        self._rounds_done = mark.round * nodes  # sum over all nodes
        self._alive_at = mark.now  # time of the last Report, join or restart
        self._stalled_at: float | None = None

    # -- results -------------------------------------------------------------------------------------------

    def records(self) -> tuple[NodeRecord, ...]:
        return tuple(node.summary() for node in self.world.nodes.values())

    def refused(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for node in self.world.nodes.values():
            total.update(node.traffic.refused)
        return dict(sorted(total.items()))

    def models_lost(self) -> int:
        return sum(node.traffic.models_lost for node in self.world.nodes.values())

    def learner(self, _: int, node: PeerId) -> LearnerPort:
        """A `Load` that returns the learners of this simulation."""
        return self.world.nodes[node].learner

    def mark(self, wall: float, cpu: float) -> SegmentMark:
        """Where the run continues; `wall` and `cpu` are the seconds it has taken so far."""
        now = min((held.at for held in self.held.values() if held.state == "up"), default=self.virtual_seconds)
        until = self.world.until
        return SegmentMark(until or self.world.settings.rounds or 0, now, wall, cpu)

    # -- running -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until every node has finished or is down for good, and every message has arrived or been lost."""
        world, loop = self.world, self.world.clock
        loop.call_soon(self._found)
        often = gc.get_threshold()
        gc.freeze()  # the nodes' data stays in memory for the whole run
        gc.set_threshold(GARBAGE, *often[1:])
        try:
            loop.run(self._over)
            self.virtual_seconds = loop.now
            loop.run(lambda: not (world.fabric.flying or any(node.busy for node in world.nodes.values())))
            self.held = {id: node.pause() for id, node in world.nodes.items()} if world.held else {}
        except BaseException as error:
            error.add_note(f"at {loop.now:.6f} s of the simulation")
            with suppress(Exception):  # the cleanup of a node must not hide the error
                self._close()
            raise
        else:
            self._close()
        finally:
            gc.set_threshold(*often)
            gc.unfreeze()

    def _over(self) -> bool:
        """Checked whenever the clock is about to advance."""
        world = self.world
        if not self._began or world.running > world.held or self._to_come:
            if world.clock.now - self._alive_at > STALL and not any(node.paused for node in world.nodes.values()):
                self._stalled_at = self._stalled_at or world.clock.now  # a round may just be ending
                if world.clock.now > self._stalled_at + GRACE:
                    raise SimulationStuck(f"no round was finished for {STALL:g} s: {self._who_waits()}")
            return False
        return True

    def _close(self) -> None:
        """Cancel the remaining tasks. They end without virtual time passing, because their ports are cut."""
        loop = self.world.clock
        for node in self.world.nodes.values():
            node.stop()
        try:
            loop.cancel_tasks()
        finally:
            loop.close()

    def _who_waits(self) -> str:
        up = [n for n in self.world.nodes.values() if n.up]
        named = [f"{n.id} waits for {n.waits_for}" for n in up[:SHOWN]]
        return "; ".join(named) + (f"; and {len(up) - SHOWN} more" if len(up) > SHOWN else "")

    def _reported(self) -> None:
        clock, settings = self.world.clock, self.world.settings
        self._alive_at, self._stalled_at = clock.now, None
        self._rounds_done += 1
        if self.progress and settings.rounds:
            self.progress(Progress(self._rounds_done, settings.rounds * len(self.world.nodes), clock.now))

    # -- starts and faults ---------------------------------------------------------------------------------

    def _found(self) -> None:
        """Start the founders: they know each other and begin within `costs.start` of each other."""
        self._began = True
        late = {f.node for f in self.faults if isinstance(f, Join)}
        first = [n for n in self.world.nodes.values() if n.id not in late and n.state != "left"]
        left = [n for n in self.world.nodes.values() if n.state == "left"]
        self.world.detector.start_with((n.id for n in first), (n.id for n in left))
        for node in first:
            node.founder = True
        for node in first:
            jitter = self.world.costs.start * self.world.chance(node.id, "start")
            node.start(self.world.clock.now + jitter if node.resumes_at is None else node.resumes_at)
        self._plan_faults()

    def _plan_faults(self) -> None:
        clock = self.world.clock
        for fault in self.faults:
            match fault:
                case Crash(node=id):
                    clock.at(fault.at, partial(self._crash, self.world.nodes[id]))
                case Restart(node=id):
                    self._to_come += 1
                    clock.at(fault.at, partial(self._restart, self.world.nodes[id]))
                case Join(node=id):
                    self._to_come += 1
                    clock.at(fault.at, partial(self._join, self.world.nodes[id]))
                case Partition() | Cut():
                    clock.at(fault.at, partial(self._divide, fault))
                    clock.at(fault.until, self._heal)

    def _crash(self, node: Process) -> None:
        if node.up:
            node.crash()

    def _restart(self, node: Process) -> None:
        self._to_come -= 1
        if node.state == "crashed":  # it may have finished before the crash
            self._alive_at = self.world.clock.now
            node.restart()

    def _join(self, node: Process) -> None:
        self._to_come -= 1
        self._alive_at = self.world.clock.now
        node.start()

    def _divide(self, fault: Partition | Cut) -> None:
        now, journal = self.world.clock.now, self.world.journal
        if isinstance(fault, Partition):
            journal.write(now, None, "partition", groups=[sorted(group) for group in fault.groups])
        else:
            journal.write(now, None, "cut", senders=sorted(fault.senders), receivers=sorted(fault.receivers))
        self.world.detector.divided()

    def _heal(self) -> None:
        self.world.journal.write(self.world.clock.now, None, "healed")
        self.world.detector.healed()
