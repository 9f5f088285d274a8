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

from pfl_node.daemon.advertise import dialled
from pfl_node.daemon.tls_setup import tls_of
from pfl_node.errors import ConfigError, StoreError, TaskError
from pfl_node.failpoints import afailpoint
from pfl_node.fault import users_fault
from pfl_node.learning.build import learner_of, place_of
from pfl_node.learning.trainer import Trainer
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Changed, Died, Event, JoinRefused, Left
from pfl_node.membership.service import Membership
from pfl_node.node.catchup import CatchUp
from pfl_node.node.context import Desk
from pfl_node.node.driver import Driver
from pfl_node.node.host import Reception
from pfl_node.node.notifier import Bell
from pfl_node.node.peers import Company
from pfl_node.node.recorder import Chronicle, Observer, go_on
from pfl_node.node.startup import appoint, check_lab, check_reports, entry_round
from pfl_node.node.work_count import Work
from pfl_node.ops.observer import Lookout
from pfl_node.ops.status import status_of
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import Warden
from pfl_node.protocol.mailbox import Mailbox, limits_of
from pfl_node.protocol.privacy.controls import privacy_of
from pfl_node.protocol.published import Window
from pfl_node.seeds import fresh_seed
from pfl_node.settings import Settings
from pfl_node.sim.attacks.colluders import is_bad
from pfl_node.sim.attacks.malicious import lenient, liar, spoilt
from pfl_node.store.data_dir import Home
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
        home: Home,
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
        self.work = Work()
        self.bad = lab and is_bad(settings, place_of(settings, home).index, settings.task.nodes)  # malicious
        self.policy_class = self._cast(lab=lab)
        self.policy_config = configure(self.policy_class, settings.policy.options)
        self.policy: Policy | None = None
        self.driver: Driver | None = None
        self.chronicle: Chronicle | None = None
        self._observe = observe
        self._bell = Bell()
        self._stop = asyncio.Event()
        self._refusal: ConfigError | None = None
        late = settings.round.staleness if self.policy_class.late else 0
        self.mailbox = Mailbox(limits_of(settings.serve, late), self.policy_class.takes)
        # On a lab's one machine, and where TLS says who calls, names are sure.
        certain = lab or self.tls is not None or settings.guard.names
        guard = lenient(settings.guard) if self.bad else settings.guard
        self.warden = Warden(guard, certain=certain, tell=lambda *told: self.lookout.guarded(*told))
        self.privacy = privacy_of(settings, home, certain=certain)
        self.reception = self._reception()
        self.client = PeerClient(self.id, settings.run, settings.wire, self.tls.dialer if self.tls else None)
        self.endpoint = Endpoint(tls=self.tls)
        self.membership = self._membership()
        self.company = Company(self.membership, settings.run, settings.rounds)
        self._catch_up = CatchUp(self.mailbox, self.company.rounds, lambda: self.membership.pauses)
        self.lookout = Lookout(self)
        if self.tls:
            self.tls.door.on_refused = lambda call, why, who: self.reception.count(call, why, who, 0)

    def _cast(self, *, lab: bool) -> type[Policy]:
        """What this node is to follow, whether it may, and how it does if it is malicious."""
        cls = load_policy(self.settings.policy.name)
        check_lab(cls, self.settings, lab=lab)
        return spoilt(cls, self.settings) if self.bad else cls

    def _reception(self) -> Reception:
        settings = self.settings
        reception = Reception(
            self.id,
            settings.run,
            settings.serve,
            self.mailbox,
            self._bell,
            status=lambda: status_of(self),
            window=Window(self.id, settings.serve, self.policy_class.serves),
            warden=self.warden,
            mine=lambda: self.policy.model if self.policy else None,
        )
        reception.oracle = self.privacy.oracle
        reception.lie = liar(settings.attack) if self.bad else None
        return reception

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
        PeerService(self.reception, self.settings.wire, seen=self.lookout).attach(self.endpoint)
        self.membership.attach(self.endpoint)
        await self.endpoint.bind(self.settings.listen, self.membership.bind)
        await self.endpoint.start()
        mine, bound = self.settings, self.endpoint
        self.address = join_address(*await dialled(mine.advertise, bound.host, bound.port, mine.peer_seed))
        await self.lookout.open()

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
        await self.lookout.close()
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
        self.chronicle = Chronicle(
            self.settings,
            self.home,
            policy,
            learner,
            self.trainer,
            work=self.work,
            publish=self.reception.publish,
            ended=self._ended,
            observe=self._observe,
            tell=self.lookout.tell,
        )
        self.mailbox.advance(policy.round)
        self.reception.open(learner, self.trainer)
        await self.endpoint.serving(True)
        await self._join(policy)
        self.state = "training"
        self.lookout.begins(policy, learner, self.chronicle)
        desk = Desk(
            settings=self.settings,
            learner=learner,
            trainer=self.trainer,
            client=self.client,
            mailbox=self.mailbox,
            bell=self._bell,
            company=self.company,
            diary=self.chronicle,
            work=self.work,
            warden=self.warden,
        )
        self.driver = Driver(policy, desk)
        had_rounds = policy.more
        await self.driver.run()
        check_reports(self.settings.policy.name, self.chronicle.reports, had_rounds=had_rounds)

    async def _make_policy(self, learner: Learner) -> Policy:
        """As the checkpoint left it, or new."""
        seed = fresh_seed(self.settings, self.id, 0)
        model = await self.trainer.soon(lambda: learner.fresh(seed))
        policy = appoint(self.policy_class, self.policy_config, self.settings, self.id, learner, model)
        return go_on(policy, self.settings, self.home, learner.layout, warn=self.lookout.hub.warn)

    async def _join(self, policy: Policy) -> None:
        """Become a member, wait for company, and learn where the swarm is."""
        self.state = "joining"
        self.company.i_am_in(policy.round)
        await afailpoint("join")
        await self.membership.start(self.settings.peer_seed, advertise=self.address)
        if not self.membership.joined:
            self.lookout.hub.warn("no seed has answered yet; trying again", seeds=list(self.settings.peer_seed))
        start = self.settings.start
        if not policy.more or policy.solitary:
            start = start.model_copy(update={"peers": 0, "calm": 0})
        await self.company.gather(start, self._bell)
        if self.company.seen() < start.peers:
            self.lookout.hub.warn(
                f"{len(self.company())} other nodes after {start.wait:g} s; going on, others may still come"
            )
        policy.round = entry_round(policy, self.company.rounds().values())
        self.mailbox.advance(policy.round)
        self.company.i_have_come(policy.round)

    def _ended(self, round: int) -> None:
        """A round is done."""
        assert self.policy is not None
        self._catch_up.after(round, self.policy)
        self.company.i_am_in(self.policy.round + 1)

    def _on_membership(self, event: Event) -> None:
        member = event.member
        self.lookout.membership(event)
        match event:
            case Died() | Left():
                self.client.forget(PeerId(member.id))
            case Changed() if member.id == self.id:
                self._keep_incarnation(member.incarnation)
            case JoinRefused():
                self._refusal = ConfigError(event.reason)
                self.stop()
        self._bell.ring()

    def _keep_incarnation(self, incarnation: int) -> None:
        """A full disk costs nothing here: after a restart the others tell the node again."""
        try:
            self.home.keep_incarnation(incarnation)
        except StoreError as error:
            log.error("the incarnation was not written; training goes on", error=str(error))

    async def _finish(self, how: str) -> None:
        self.state = "done" if how == "done" else "leaving"
        self.reception.close()
        await self.endpoint.serving(False)
        try:
            if self.chronicle:
                await self.chronicle.finish(how)
                self.chronicle.close()
        finally:
            if how == "done":
                self.company.i_am_done()
            if not await afailpoint("leave"):
                await self.membership.leave()
