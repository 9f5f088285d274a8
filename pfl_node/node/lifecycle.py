"""One node: wiring and lifecycle only. An ordinary object; many live in one process and share a trainer.

The port opens first, then torch is loaded, then the node joins: a member is a node that can take part.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from pfl_node.daemon.advertise import advertised_address
from pfl_node.daemon.tls_setup import tls_of
from pfl_node.errors import ConfigError, StoreError, TaskError
from pfl_node.failpoints import afailpoint
from pfl_node.fault import users_fault
from pfl_node.learning.build import learner_of, place_of
from pfl_node.learning.trainer import Trainer
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Changed, Died, JoinRefused, Left, MemberEvent
from pfl_node.membership.service import Membership
from pfl_node.node.catchup import CatchUp
from pfl_node.node.context import NodeContext
from pfl_node.node.driver import Driver
from pfl_node.node.host import Host
from pfl_node.node.notifier import Notifier
from pfl_node.node.peers import RunPeers
from pfl_node.node.recorder import Observer, Recorder, restore_checkpoint
from pfl_node.node.startup import check_lab, check_reports, entry_round, make_policy
from pfl_node.node.work_count import WorkCount
from pfl_node.ops.observer import NodeObserver
from pfl_node.ops.status import status_of
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox, limits_of
from pfl_node.protocol.privacy.controls import privacy_of
from pfl_node.protocol.published import PublishedModels
from pfl_node.seeds import fresh_seed
from pfl_node.settings import Settings
from pfl_node.sim.attacks.colluders import is_bad
from pfl_node.sim.attacks.malicious import lenient, liar, spoilt
from pfl_node.store.data_dir import DataDir
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.endpoint import Endpoint, join_address
from pfl_node.wire.server import PeerService

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner

log = structlog.get_logger(__name__)


class Node:
    """`await start()`, `await run()`, `await close()`; `stop()` ends `run` early and in order."""

    def __init__(
        self,
        settings: Settings,
        home: DataDir,
        trainer: Trainer,
        observe: Observer | None = None,
        *,
        lab: bool = False,
    ) -> None:
        self.settings = settings
        self.home = home
        self.trainer = trainer
        self.tls = tls_of(settings, home)
        self.id = home.identity.id
        self.name = settings.name or f"node-{self.id[:6]}"
        self.address = ""  # what others dial
        self.state = "starting"
        self.started = time.monotonic()
        self.work = WorkCount()
        self.bad = lab and is_bad(settings, place_of(settings, home).index, settings.task.nodes)  # malicious
        self.policy_class = self._cast(lab=lab)
        self.policy_config = configure(self.policy_class, settings.policy.options)
        self.policy: Policy | None = None
        self.driver: Driver | None = None
        self.recorder: Recorder | None = None
        self._observe = observe
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        self._refusal: ConfigError | None = None
        late = settings.round.staleness if self.policy_class.late else 0
        self.mailbox = Mailbox(limits_of(settings.serve, late), self.policy_class.takes)
        # On a lab's one machine, and where TLS says who calls, names are sure.
        certain = lab or self.tls is not None or settings.guard.names
        guard = lenient(settings.guard) if self.bad else settings.guard
        self.guard = Guard(guard, certain=certain, tell=lambda *told: self.observer.guarded(*told))
        self.privacy = privacy_of(settings, home, certain=certain)
        self.host = self._host()
        self.client = PeerClient(self.id, settings.run, settings.wire, self.tls.dialer if self.tls else None)
        self.endpoint = Endpoint(tls=self.tls)
        self.membership = self._membership()
        self.peers = RunPeers(self.membership, settings.run, settings.rounds)
        self._catch_up = CatchUp(self.mailbox, self.peers.rounds, lambda: self.membership.pauses)
        self.observer = NodeObserver(self)
        if self.tls:
            self.tls.door.on_refused = lambda call, why, who: self.host.count(call, why, who, 0)

    def _cast(self, *, lab: bool) -> type[Policy]:
        """What this node is to follow, whether it may, and how it does if it is malicious."""
        cls = load_policy(self.settings.policy.name)
        check_lab(cls, self.settings, lab=lab)
        return spoilt(cls, self.settings) if self.bad else cls

    def _host(self) -> Host:
        settings = self.settings
        host = Host(
            self.id,
            settings.run,
            settings.serve,
            self.mailbox,
            self._notifier,
            status=lambda: status_of(self),
            window=PublishedModels(self.id, settings.serve, self.policy_class.serves),
            guard=self.guard,
            mine=lambda: self.policy.model if self.policy else None,
        )
        host.oracle = self.privacy.oracle
        host.lie = liar(settings.attack) if self.bad else None
        return host

    def _membership(self) -> Membership:
        settings, who = self.settings, self.home.identity
        return Membership(
            Member(
                id=who.id, name=self.name, address="", role="node", run=settings.run, incarnation=who.incarnation
            ),
            settings.membership,
            rng=random.Random(f"{settings.seed}/membership/{self.id}"),
            on_event=self._on_membership,
            dialer=self.tls.dialer if self.tls else None,
        )

    # -- lifecycle -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the port. Needs no torch."""
        PeerService(self.host, self.settings.wire, seen=self.observer).attach(self.endpoint)
        self.membership.attach(self.endpoint)
        await self.endpoint.bind(self.settings.listen, self.membership.bind)
        await self.endpoint.start()
        mine, bound = self.settings, self.endpoint
        self.address = join_address(
            *await advertised_address(mine.advertise, bound.host, bound.port, mine.peer_seed)
        )
        await self.observer.open()

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
        """Give back the port, the channels and the directory, however far it came."""
        await self.observer.close()
        await self.membership.close()
        await self.client.close()
        await self.endpoint.stop()
        self.home.close()

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
        learner = await self.trainer.do(lambda _: learner_of(self.settings, self.home, self.privacy.account))
        self.policy = policy = await self._make_policy(learner)
        self.recorder = Recorder(
            self.settings,
            self.home,
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
        await self.endpoint.serving(True)
        await self._join(policy)
        self.state = "training"
        self.observer.begins(policy, learner, self.recorder)
        context = NodeContext(
            settings=self.settings,
            learner=learner,
            trainer=self.trainer,
            client=self.client,
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

    async def _make_policy(self, learner: Learner) -> Policy:
        """As the checkpoint left it, or new."""
        seed = fresh_seed(self.settings, self.id, 0)
        model = await self.trainer.soon(lambda: learner.fresh(seed))
        policy = make_policy(self.policy_class, self.policy_config, self.settings, self.id, learner, model)
        return restore_checkpoint(policy, self.settings, self.home, learner.layout, warn=self.observer.hub.warn)

    async def _join(self, policy: Policy) -> None:
        """Become a member, wait for peers, and learn where the swarm is."""
        self.state = "joining"
        self.peers.i_am_in(policy.round)
        await afailpoint("join")
        await self.membership.start(self.settings.peer_seed, advertise=self.address)
        if not self.membership.joined:
            self.observer.hub.warn("no seed has answered yet; trying again", seeds=list(self.settings.peer_seed))
        start = self.settings.start
        if not policy.more or policy.solitary:
            start = start.model_copy(update={"peers": 0, "calm": 0})
        await self.peers.gather(start, self._notifier)
        if self.peers.seen() < start.peers:
            self.observer.hub.warn(
                f"{len(self.peers())} other nodes after {start.wait:g} s; going on, others may still come"
            )
        policy.round = entry_round(policy, self.peers.rounds().values())
        self.mailbox.advance(policy.round)
        self.peers.i_have_come(policy.round)

    def _ended(self, round: int) -> None:
        """A round is done."""
        assert self.policy is not None
        self._catch_up.after(round, self.policy)
        self.peers.i_am_in(self.policy.round + 1)

    def _on_membership(self, event: MemberEvent) -> None:
        member = event.member
        self.observer.membership(event)
        match event:
            case Died() | Left():
                self.client.forget(PeerId(member.id))
            case Changed() if member.id == self.id:
                self._keep_incarnation(member.incarnation)
            case JoinRefused():
                self._refusal = ConfigError(event.reason)
                self.stop()
        self._notifier.ring()

    def _keep_incarnation(self, incarnation: int) -> None:
        """A full disk costs nothing here: after a restart the others tell the node again."""
        try:
            self.home.keep_incarnation(incarnation)
        except StoreError as error:
            log.error("the incarnation was not written; training goes on", error=str(error))

    async def _finish(self, how: str) -> None:
        self.state = "done" if how == "done" else "leaving"
        self.host.close()
        await self.endpoint.serving(False)
        try:
            if self.recorder:
                await self.recorder.finish(how)
                self.recorder.close()
        finally:
            if how == "done":
                self.peers.i_am_done()
            if not await afailpoint("leave"):
                await self.membership.leave()
