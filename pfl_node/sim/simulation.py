"""All nodes of a simulation: who comes and goes when, and when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from pfl_node.errors import SimulationStuck
from pfl_node.settings import Settings
from pfl_node.sim.attacks.colluders import SharedModels, bad_places
from pfl_node.sim.attacks.malicious import AttackPlan, malicious
from pfl_node.sim.clock import Clock
from pfl_node.sim.conditions import Conditions
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Crash, Cut, Fault, Join, Partition, Restart, check_faults, node_ids
from pfl_node.sim.learner_port import Load
from pfl_node.sim.message_network import Post
from pfl_node.sim.node import SimNode
from pfl_node.sim.outcome import NodeRecord
from pfl_node.sim.snapshot import Plan
from pfl_node.sim.world import World

SHOWN = 5  # nodes named in an error
STALL = 3600.0  # virtual seconds without a finished round after which a run is given up


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    rounds_done: int  # over all nodes
    rounds_total: int
    virtual_seconds: float


def plan_of_bad(plan: Plan, settings: Settings, nodes: int, bad: Collection[int]) -> Plan:
    """What malicious nodes are to do."""
    pool = SharedModels() if settings.attack.collude else None
    return replace(plan, policy=malicious(plan.policy, AttackPlan(settings.attack, nodes, len(bad), pool)))


class Simulation:
    """`run()` once; then `records`, `refused` and `virtual_seconds`."""

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
        now: float = 0.0,
        done: int = 0,
    ) -> None:
        ids = node_ids(nodes)
        check_faults(faults, ids)
        self.faults = sorted(faults, key=lambda f: f.at)
        self.progress = progress
        self.virtual_seconds = 0.0
        self.world = World(
            settings, costs or Costs(), Clock(now), Conditions(faults), journal, reported=self._reported
        )
        self.post = Post(self.world)
        bad = bad_places(settings.attack, nodes, settings.seed)
        malicious = plan_of_bad(plan, settings, nodes, bad) if bad else plan
        for index, id in enumerate(ids):
            own = malicious if index in bad else plan
            self.world.nodes[id] = SimNode(id, load(index, id), own, self.world, self.post)
        self._to_come = 0  # joins and restarts that have not happened yet
        self._rounds_done = done  # over all nodes
        self._alive_at = now  # when something last showed that the run goes on

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

    # -- the run -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every node has finished or is down for good, and every message has arrived somewhere."""
        self._found()
        self._plan_faults()
        world = self.world
        while world.running > world.held or self._to_come:
            if not self._step():
                raise SimulationStuck(f"nothing is left to happen, but {self._who_waits()}")
            if world.clock.now - self._alive_at > STALL:
                raise SimulationStuck(f"no round was finished for {STALL:g} s: {self._who_waits()}")
        self.virtual_seconds = world.clock.now
        for node in world.nodes.values():
            node.stop()
        while self.post.flying and self._step():
            pass

    def _step(self) -> bool:
        try:
            return self.world.clock.step()
        except Exception as error:
            error.add_note(f"at {self.world.clock.now:.6f} s of the simulation")
            raise

    def _who_waits(self) -> str:
        up = [n for n in self.world.nodes.values() if n.up]
        named = [f"{n.id} waits for {n.waits_for}" for n in up[:SHOWN]]
        return "; ".join(named) + (f"; and {len(up) - SHOWN} more" if len(up) > SHOWN else "")

    def _reported(self) -> None:
        clock, settings = self.world.clock, self.world.settings
        self._alive_at = clock.now
        self._rounds_done += 1
        if self.progress and settings.rounds:
            self.progress(Progress(self._rounds_done, settings.rounds * len(self.world.nodes), clock.now))

    # -- who comes and goes --------------------------------------------------------------------------------

    def _found(self) -> None:
        """Those who are there from the beginning know each other and begin at nearly the same time."""
        late = {f.node for f in self.faults if isinstance(f, Join)}
        first = [n for n in self.world.nodes.values() if n.id not in late and n.state != "left"]
        self.world.views.found(n.id for n in first)
        chance = Random(f"{self.world.settings.seed}/start/{self.world.clock.now}")
        for node in first:
            node.appear()
            self.world.clock.after(chance.uniform(0, self.world.costs.start), node.start)

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

    def _crash(self, node: SimNode) -> None:
        if node.up:
            node.crash()

    def _restart(self, node: SimNode) -> None:
        self._to_come -= 1
        if node.state == "crashed":  # it may have been done before it could crash
            node.come_back()
            self._enter(node)

    def _join(self, node: SimNode) -> None:
        self._to_come -= 1
        self._enter(node)

    def _enter(self, node: SimNode) -> None:
        self._alive_at = self.world.clock.now
        node.appear()
        self.world.views.arrived(node.id)
        node.start_late()

    def _divide(self, fault: Partition | Cut) -> None:
        now, journal = self.world.clock.now, self.world.journal
        if isinstance(fault, Partition):
            journal.write(now, None, "partition", groups=[sorted(group) for group in fault.groups])
        else:
            journal.write(now, None, "cut", senders=sorted(fault.senders), receivers=sorted(fault.receivers))
        self.world.views.divided()

    def _heal(self) -> None:
        self.world.journal.write(self.world.clock.now, None, "healed")
        self.world.views.healed()
