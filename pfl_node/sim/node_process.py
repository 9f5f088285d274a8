"""A simulated process: the daemon's `PolicyNode` on the simulator's ports. It can crash and restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import copy_context
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog

from pfl_node.model import Model
from pfl_node.node.context import WorkCount
from pfl_node.node.host import Host
from pfl_node.node.lifecycle import PolicyNode
from pfl_node.node.ports import Job, JournalWriter, LearnerFacts, Members, Plan, Role
from pfl_node.node.recorder import snapshot_of
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.protocol.privacy.controls import simulated
from pfl_node.sim.event_loop import CLOCK, SkewedClock
from pfl_node.sim.failure_detector import DetectorMembers
from pfl_node.sim.inline_trainer import InlineTrainer
from pfl_node.sim.job_pool import Result
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.sim.memory_store import Disk, MemoryStore
from pfl_node.sim.network import SimNetwork, Traffic
from pfl_node.sim.outcome import NodeRecord, own_metrics
from pfl_node.sim.snapshot import NodeSnapshot, State, attributes
from pfl_node.sim.swim_network import SimMembership
from pfl_node.steps import DIVERGED, Report
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.event_loop import VirtualLoop
    from pfl_node.sim.simulation import World


# A logger that discards everything: a simulation records its events in the journal.
SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)).bind()


class Process:
    """away -> up -> left; up -> crashed -> up. Every start creates a new PolicyNode and new ports."""

    def __init__(self, id: PeerId, learner: LearnerPort, plan: Plan, role: Role, world: World) -> None:
        self.id = id
        self.learner = learner
        self.world = world
        self.state: State = "away"
        self.traffic = Traffic()
        self.calls: dict[PeerId, int] = {}  # the number of the last call to each peer
        self.jobs = 0  # number of jobs that took virtual time
        self.speed = world.costs.speed(world.chance(id, "speed"))
        self.disk = Disk(simulated(world.settings, id, learner.account))
        self.clock: VirtualLoop | SkewedClock = world.clock_of(id)
        self.context = copy_context()
        self.node: PolicyNode | None = None
        self.swim: SimMembership | None = None  # None: the failure detector provides membership
        self.founder = False  # a member from the start of the run
        self.begins_at: float | None = None  # None: it joins a running swarm
        self._plan = plan
        self._role = role
        self._observe = world.watch(id)
        self._task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], Callable[[], None]] = {}  # requests from peers in progress
        self._confusion: Result | None = None
        self.resumes_at: float | None = None  # set when resumed from the previous segment
        self._resumes: Mapping[str, Any] | None = None  # the dump of the node in that segment
        self._frozen = False  # its policy is held until the next segment
        self._snapshot: dict[str, Any] | None = None  # the policy's state at the end of the segment
        self._since = 0.0  # when the snapshot was taken
        self._mail: list[tuple[float, Offer, int]] = []  # received while held: time, model, bytes

    @property
    def up(self) -> bool:
        return self.state == "up"

    @property
    def busy(self) -> bool:
        """Is a request from a peer in progress?"""
        return bool(self._tasks)

    @property
    def honest(self) -> bool:
        return self._role.honest

    @property
    def host(self) -> Host:
        return self._node.host

    @property
    def mailbox(self) -> Mailbox:
        return self._node.mailbox

    @property
    def guard(self) -> Guard:
        return self._node.guard

    @property
    def work(self) -> WorkCount:
        return self._node.work

    @property
    def policy(self) -> Policy:
        assert self._node.policy is not None
        return self._node.policy

    @property
    def _node(self) -> PolicyNode:
        assert self.node is not None, f"{self.id} has not joined yet"
        return self.node

    @property
    def waits_for(self) -> str:
        """The pending step, for error messages about a stuck simulation."""
        driver = self.node and self.node.driver
        return driver.waits_for() if driver else "its start"

    @property
    def paused(self) -> bool:
        """Whether it waits for the time at which its next round begins."""
        driver = self.node and self.node.driver
        return self.up and bool(driver and driver.schedule.next and driver.schedule.next.at is not None)

    # -- lifecycle -----------------------------------------------------------------------------------------

    def start(self, at: float | None = None) -> None:
        """Make the node reachable. Its policy starts at `at`; None: it joins a running swarm."""
        self.state, self.begins_at = "up", at
        self.world.running += 1
        self.context = copy_context()
        if isinstance(self.clock, SkewedClock):
            self.context.run(CLOCK.set, self.clock)
        self.context.run(self._live)

    def _live(self) -> None:
        world = self.world
        self._network, self._store = SimNetwork(self, world), MemoryStore(self, world)
        self.swim = SimMembership(self, world) if world.settings.sim.membership == "swim" else None
        self._members = DetectorMembers(self, world)
        members: Members = self.swim.members_of_run if self.swim else self._members
        self.node = PolicyNode(
            world.settings,
            self._plan,
            store=self._store,
            network=self._network,
            members=members,
            trainer=InlineTrainer(self, world),
            observer=self,
            log=SILENT,
            certain=True,
            role=self._role,
            hold=self.hold,
            stops=False,
            observe=self._observe,
        )
        self.node.shared_secret = self._shared_secret
        if self._resumes:
            self.node.load(self._resumes)
        for at, offer, nbytes in self._mail:
            world.clock.at(at, world.fabric.redeliver, self, offer, nbytes, context=self.context)
        self._mail = []
        self._task = asyncio.create_task(self._run(self.node))

    def _shared_secret(self, peer: PeerId) -> bytes:
        """Daemons derive the secret from keys that are new at each start; here it is derived from the seed."""
        lives = sorted(((self.id, self.disk.lives), (peer, self.world.nodes[peer].disk.lives)))
        return sha256(f"{self.world.settings.seed}/pair/{lives}".encode()).digest()

    async def _run(self, node: PolicyNode) -> None:
        try:
            await node.run()
        except Exception as error:
            self.world.clock.fail(error)
            return
        self._end("left")
        self._confusion = self._submit_confusion(self.policy.model)
        await node.close()

    async def entered(self) -> None:
        """Called when the node accepts models: restore its policy's attributes and become a member."""
        if self.resumes_at is not None and self.disk.checkpoint:
            for name, value in self.disk.checkpoint["rest"].items():
                setattr(self.policy, name, value)
        if self.begins_at is None:
            self.world.detector.arrived(self.id)
        else:
            await self.world.clock.until(self.begins_at)

    def crash(self) -> None:
        """Cut the ports before cancelling the tasks, so that their cleanup has no effect outside."""
        self._end("crashed")
        self.world.journal.write(self.world.clock.now, self.id, "crashed")
        self.world.detector.crashed(self.id)

    def restart(self) -> None:
        checkpoint = self.disk.checkpoint
        round = checkpoint["round"] + 1 if checkpoint else 0
        self.world.journal.write(self.world.clock.now, self.id, "restarted", round=round)
        self.start()

    def stop(self) -> None:
        """End the process because the simulation is over."""
        if self.up:
            self._end(self.state)

    def _end(self, state: State) -> None:
        self.world.running -= 1
        if self._snapshot:
            self.world.held -= 1
            self._snapshot = None
        if state != "left":
            for port in (self._network, self._members, self._store, self.swim):
                if port:
                    port.cut()
            assert self._task is not None
            self._task.cancel()
        for task, lost in list(self._tasks.items()):
            task.cancel()
            lost()
        self._tasks.clear()
        self.state = state

    def spawn(self, work: Coroutine[Any, Any, None], lost: Callable[[], None]) -> None:
        """Handle a peer's request in a task; call `lost` if the process ends before it completes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = lost
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            self.world.clock.fail(error)

    # -- the node's observer -------------------------------------------------------------------------------

    def tell(self, kind: str, data: Mapping[str, Any]) -> None: ...
    def warn(self, text: str, **facts: Any) -> None: ...
    def begins(self, policy: Policy, learner: LearnerFacts, journal: JournalWriter) -> None:
        if self.resumes_at is None:
            facts = {"round": policy.round, "samples": learner.samples, "cluster": learner.cluster}
            journal.write("started", facts)

    def guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """Journal a quarantine as an event, and a rejected model as a message."""
        if event == "quarantined":
            self._store.write(event, data)
        else:
            self.world.message(self.id, event, **data)

    def peers_lost(self, peers: Collection[PeerId]) -> None:
        """The failure detector declared these peers dead: notify the node's listener."""
        if self.up and (listener := self._members.listener):
            for peer in peers:
                self.context.run(listener.gone, peer)

    # -- segments ------------------------------------------------------------------------------------------

    async def hold(self, step: Report | None) -> None:
        """Stop the policy after the segment's last Report, where its state is consistent."""
        until, after, rounds = self.world.until, self.policy.round + 1, self.world.settings.rounds
        if step and until is not None and after >= until and (rounds is None or after < rounds):
            self._take_snapshot()
            self._frozen = True
        if self._frozen:
            await self.world.clock.create_future()

    def announced(self, round: int) -> None:
        """A node that completes its last round before the others stays up until the segment ends."""
        rounds = self.world.settings.rounds
        if self.world.until is not None and rounds is not None and round >= rounds:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        if self._snapshot is None:
            self.world.held += 1
            ahead = self._node.lookahead.dump()
            taken = snapshot_of(self.policy, self._node.trainer.state, self._best(), ahead)
            self._snapshot = {**taken, "rest": attributes(self.policy)}
            self._since = self.world.clock.now

    def _best(self) -> Mapping[str, Any] | None:
        return self._node.recorder.best.dump() if self._node.recorder else None

    def hold_offer(self, offer: Offer, nbytes: int) -> bool:
        """Keep a model for the inbox of a held policy; it is delivered in the next segment."""
        if self._frozen and offer.round is None:
            self._mail.append((self.world.clock.now, offer, nbytes))
            return True
        return False

    def pause(self) -> NodeSnapshot:
        """The node's state at the end of a segment, when no message or request is in progress."""
        return NodeSnapshot(
            state=self.state,
            at=self._since,
            policy=self._snapshot,
            node=self._node.dump() if self._snapshot else None,
            disk=self.disk.dump(),
            traffic=vars(self.traffic),
            calls=self.calls,
            jobs=self.jobs,
            rounds=self.world.detector.announced(self.id),
            mail=self._mail,
        )

    def resume(self, held: NodeSnapshot) -> None:
        """Continue from a snapshot, at the time at which the node was held."""
        self.resumes_at = held.at
        self.state, self.traffic, self.jobs = held.state, Traffic(**held.traffic), held.jobs
        self.calls = dict(held.calls)
        privacy = simulated(self.world.settings, self.id, self.learner.account, held.disk["privacy"])
        self.disk = Disk(privacy, held.policy, held.disk["reports"], held.disk["told"], held.disk["figures"])
        self.world.detector.restore(self.id, held.rounds)
        self._mail = list(held.mail)
        self._resumes = held.node

    def summary(self) -> NodeRecord:
        events, figures, traffic = self.disk.last_events, self.disk.figures, self.traffic
        neighbours = events.get("neighbours", {}).get("ids")
        guard = self.node and self.node.guard
        return NodeRecord(
            id=self.id,
            cluster=self.learner.cluster,
            state=self.state,
            rounds=self.disk.reports,
            accuracy=figures.get("test_accuracy"),
            loss=figures.get("test_loss"),
            models_sent=traffic.models_sent,
            models_received=traffic.models_received,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            neighbours=None if neighbours is None else tuple(neighbours),
            head=events.get("round", {}).get("head"),
            confusion=self._confusion_matrix(),
            honest=self.honest,
            quarantined=tuple(sorted(guard.ever)) if guard else (),
            kept_out=guard.refused.total() if guard else 0,
            metrics=own_metrics(figures),
            headline=self.learner.headline,
            diverged=events.get(DIVERGED, {}).get("round"),
        )

    def _submit_confusion(self, model: Model) -> Result:
        job = self._node.trainer.with_state(Job("confusion", model))
        return self.world.jobs.submit(self.id, self.learner, job)

    def _confusion_matrix(self) -> list[list[int]] | None:
        """The confusion matrix on test data. If the node did not finish, it belongs to the last model it
        evaluated."""
        result, recorder = self._confusion, self.node and self.node.recorder
        if result is None and recorder and recorder.measured_model and "test_loss" in self.disk.figures:
            result = self._submit_confusion(recorder.measured_model)
        found: list[list[int]] | None = result() if result else None
        return found
