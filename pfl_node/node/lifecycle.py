"""One node: wiring and lifecycle only. What surrounds it (network, members, disk, trainer) is behind ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from pfl_node.errors import ConfigError, TaskError
from pfl_node.failpoints import afailpoint
from pfl_node.node.catchup import CatchUp
from pfl_node.node.context import NodeContext
from pfl_node.node.driver import Driver
from pfl_node.node.host import Host
from pfl_node.node.notifier import Notifier
from pfl_node.node.peers import RunPeers
from pfl_node.node.ports import (
    HONEST,
    Job,
    LearnerFacts,
    Members,
    Network,
    Observer,
    Plan,
    Role,
    Store,
    Trainer,
    now,
)
from pfl_node.node.recorder import Recorder, restore_checkpoint
from pfl_node.node.startup import check_reports, entry_round, fresh_seed, make_policy
from pfl_node.node.work_count import WorkCount
from pfl_node.plugin import users_fault
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox, limits_of
from pfl_node.protocol.published import PublishedModels
from pfl_node.settings import Settings
from pfl_node.types import PeerId

log = structlog.get_logger(__name__)


class Node:
    """`await run()`, `await close()`; `stop()` ends `run` early and in order. Peers' calls go to `host`."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        *,
        store: Store,
        network: Network,
        members: Members,
        trainer: Trainer,
        observer: Observer,
        certain: bool,  # are callers who they say they are?
        role: Role = HONEST,
        observe: Callable[[str, Mapping[str, Any]], None] | None = None,  # called with every line of the journal
    ) -> None:
        self.settings = settings
        self.plan = Plan(role.policy(plan.policy), plan.cfg)
        self.store = store
        self.network = network
        self.members = members
        self.trainer = trainer
        self.observer = observer
        self.role = role
        self.id = store.identity.id
        self.name = settings.name or f"node-{self.id[:6]}"
        self.address = ""  # what others dial
        self.state = "starting"
        self.started = now()
        self.work = WorkCount()
        self.policy: Policy | None = None
        self.driver: Driver | None = None
        self.recorder: Recorder | None = None
        self._observe = observe
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        self._refusal: ConfigError | None = None
        late = settings.round.staleness if plan.policy.late else 0
        self.mailbox = Mailbox(limits_of(settings.serve, late), plan.policy.takes)
        self.guard = Guard(role.guard(settings.guard), certain=certain, tell=observer.guarded)
        self.privacy = store.privacy(settings, certain=certain)
        self.host = Host(
            self.id,
            settings.run,
            settings.serve,
            self.mailbox,
            self._notifier,
            window=PublishedModels(self.id, settings.serve, plan.policy.serves),
            guard=self.guard,
            mine=lambda: self.policy.model if self.policy else None,
            oracle=self.privacy.oracle,
            role=role,
        )
        self.peers = RunPeers(members, settings.rounds)
        self._catch_up = CatchUp(self.mailbox, self.peers.rounds, lambda: members.pauses)
        members.listener = self

    # -- lifecycle -----------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Load, join, learn, leave. Returns "done", or "stopped" after `stop()`."""
        how = "failed"
        try:
            how = await self._until_stopped(self._learn())
            if self._refusal:
                raise self._refusal
        except Exception as error:
            if fault := users_fault("task", self.settings.task.name, error, TaskError):
                raise fault from error
            raise
        finally:
            await self._finish(how)
        return how

    def stop(self) -> None:
        """The messages in hand are finished, the state is written, the swarm is told."""
        self._stop.set()

    async def close(self) -> None:
        """Give back what the ports hold, however far it came."""
        await self.members.close()
        await self.network.close()
        self.store.close()

    # -- the way of a run ----------------------------------------------------------------------------------

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> str:
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return "stopped"
            task.result()
            return "done"
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _learn(self) -> None:
        learner = await self.trainer.open(self.privacy.account)
        self.policy = policy = await self._make_policy(learner)
        self.recorder = Recorder(
            self.settings,
            self.store,
            policy,
            learner,
            self.trainer,
            work=self.work,
            publish=self.host.publish,
            ended=self._ended,
            observe=self._observe,
            tell=self.observer.tell,
        )
        self.mailbox.advance(policy.round)
        self.host.open(learner, self.trainer)
        await self.network.serving(True)
        await self._join(policy)
        self.state = "training"
        self.observer.begins(policy, learner, self.recorder)
        context = NodeContext(
            settings=self.settings,
            learner=learner,
            trainer=self.trainer,
            network=self.network,
            mailbox=self.mailbox,
            notifier=self._notifier,
            peers=self.peers,
            diary=self.recorder,
            work=self.work,
            guard=self.guard,
        )
        self.driver = Driver(policy, context)
        had_rounds = policy.more
        await self.driver.run()
        check_reports(self.settings.policy.name, self.recorder.reports, had_rounds=had_rounds)

    async def _make_policy(self, learner: LearnerFacts) -> Policy:
        """As the checkpoint left it, or new."""
        seed = fresh_seed(self.settings, self.id, 0)
        model = await self.trainer.soon(Job("fresh", options={"seed": seed}))
        policy = make_policy(self.plan, self.settings, self.id, learner, model)
        return restore_checkpoint(policy, self.settings, self.store, learner.layout, warn=self.observer.warn)

    async def _join(self, policy: Policy) -> None:
        """Become a member, wait for peers, and learn where the swarm is."""
        self.state = "joining"
        self.peers.i_am_in(policy.round)
        await afailpoint("join")
        await self.members.start(self.address)
        if not self.members.joined:
            self.observer.warn("no seed has answered yet; trying again", seeds=list(self.settings.peer_seed))
        start = self.settings.start
        if not policy.more or policy.solitary:
            start = start.model_copy(update={"peers": 0, "calm": 0})
        await self.peers.gather(start, self._notifier)
        if self.peers.seen() < start.peers:
            others = len(self.peers())
            self.observer.warn(f"{others} other nodes after {start.wait:g} s; going on, others may still come")
        policy.round = entry_round(policy, self.peers.rounds().values())
        self.mailbox.advance(policy.round)
        self.peers.i_have_come(policy.round)

    def _ended(self, round: int) -> int | None:
        """A round is done; where the others are, if they went on without this node."""
        assert self.policy is not None
        ahead = self._catch_up.after(round, self.policy)
        self.peers.i_am_in(self.policy.round + 1)
        return ahead

    async def _finish(self, how: str) -> None:
        self.state = "done" if how == "done" else "leaving"
        self.host.close()
        await self.network.serving(False)
        try:
            if self.recorder:
                await self.recorder.finish(how)
                self.recorder.close()
        finally:
            if how == "done":
                self.peers.i_am_done()
            if not await afailpoint("leave"):
                await self.members.leave()

    # -- what the members port calls -----------------------------------------------------------------------

    def changed(self) -> None:
        self._notifier.notify("members")

    def gone(self, peer: PeerId) -> None:
        self.network.forget(peer)
        self._notifier.notify("members")

    def refused(self, reason: str) -> None:
        self._refusal = ConfigError(reason)
        self.stop()
