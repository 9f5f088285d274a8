"""Assembles a daemon: `PolicyNode` with gRPC, SWIM, a data directory and observability.

The port opens first, then torch is loaded, then the node joins: every member is ready to take part.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic, time
from typing import TYPE_CHECKING

import structlog

from pfl_node import plugin
from pfl_node.address import is_wildcard
from pfl_node.daemon.address_watch import AddressWatch
from pfl_node.daemon.advertise import PATIENCE, advertised_address
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.daemon.network_setup import proxy_of
from pfl_node.daemon.reach import Reach, reaches
from pfl_node.daemon.relaying import Relaying
from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.daemon.tls_setup import tls_of
from pfl_node.errors import StoreError
from pfl_node.learning.build import learner_at
from pfl_node.learning.trainer import TrainerThread
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import MemberEvent
from pfl_node.membership.run_members import RunMembers
from pfl_node.membership.service import Membership
from pfl_node.node.clock import WallClock
from pfl_node.node.ports import HONEST, Plan, RoleOf
from pfl_node.node.startup import check_lab, check_reports, place_of
from pfl_node.ops.events_service import attach_events
from pfl_node.ops.observed_node import ObservedNode
from pfl_node.ops.observer import NodeObserver
from pfl_node.ops.reload_service import attach_reload
from pfl_node.ops.status import status_of
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.settings.load import dump
from pfl_node.store.atomic import write_atomic
from pfl_node.tracking.tracking import Observe, Tracking, both
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.listener import MOST_BUSY
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.resources import memory
from pfl_node.wire.server import PeerService

if TYPE_CHECKING:
    from pfl_node.security.key_agreement import KeyAgreement

log = structlog.get_logger(__name__)

SHARE_OF_TRAINING = 0.2  # fraction of the event loop's time that callers may use during training


class GrpcNetwork(PeerClient):
    """Outgoing calls, and the endpoint for incoming ones."""

    def __init__(self, me: PeerId, settings: Settings, dialer: Dialer | None, endpoint: Endpoint) -> None:
        super().__init__(me, settings.run, settings.wire, dialer, longest=settings.round.transfer)
        self._endpoint = endpoint

    async def serving(self, ready: bool) -> None:
        await self._endpoint.serving(ready)

    async def close(self) -> None:
        await super().close()
        await self._endpoint.stop()


def fit_to_memory(settings: Settings, available: int) -> Settings:
    """Waiting models use at most a quarter of the memory, those of one peer a quarter of that, and so do the
    beginnings of transfers that broke off."""
    serve, wire, one = settings.serve, settings.wire, available // 16
    waiting = {
        "waiting": min(serve.waiting, available // 4),
        "waiting_per_peer": min(serve.waiting_per_peer, one),
    }
    resume = {"resume_bytes": min(wire.resume_bytes, one)}
    return settings.model_copy(
        update={"serve": serve.model_copy(update=waiting), "wire": wire.model_copy(update=resume)}
    )


def not_alone(settings: Settings) -> Settings:
    """A node that is configured with peers waits for them, unless `round.alone` is set. With
    `train.patience` the others may have stopped for good."""
    waits = bool(settings.peer_seed) and settings.train.patience is None
    alone = settings.round.alone or ("wait" if waits else "train")
    return settings.model_copy(update={"round": settings.round.model_copy(update={"alone": alone})})


class BusyShare:
    """The part of the event loop's time that callers may use: little while the node trains without a pause, so
    that they cannot slow it down; most of it while it waits for others."""

    def __init__(self, thread: TrainerThread) -> None:
        self._thread = thread
        self._last = (monotonic(), thread.idle_seconds())

    def __call__(self) -> float:
        """Decided by the time since the last call."""
        before, self._last = self._last, (monotonic(), self._thread.idle_seconds())
        elapsed, idle = (now - then for now, then in zip(self._last, before, strict=True))
        return SHARE_OF_TRAINING if idle < elapsed / 2 else MOST_BUSY


class DaemonNode(ObservedNode):
    """`await start()`, `await run()`, `await close()`. Many nodes can share one process and one trainer thread.
    Only a lab passes `role_of`, which may make nodes malicious; a daemon is honest."""

    wall = WallClock(time, zone=None)

    _address_watch: AddressWatch | None = None
    pair_keys: KeyAgreement | None = None

    def __init__(
        self,
        settings: Settings,
        home: DiskStore,
        thread: TrainerThread,
        observe: Observe | None = None,
        *,
        role_of: RoleOf | None = None,
    ) -> None:
        settings = fit_to_memory(settings, memory())
        settings = settings if role_of else not_alone(settings)
        self.home = home
        self.tls = tls_of(settings, home)
        policy = load_policy(settings.policy.name)
        check_lab(policy, settings, lab=role_of is not None)
        place = place_of(settings, home)
        role = role_of(settings, place.index, place.nodes) if role_of else HONEST
        dialer = self.tls.dialer if self.tls else Dialer()
        self._proxy = dialer.paths.connector.proxy = proxy_of(settings.network)
        self.endpoint = Endpoint(tls=self.tls)
        self.client = GrpcNetwork(home.identity.id, settings, dialer, self.endpoint)
        self.node_observer = NodeObserver(self)
        self.membership = self._membership(settings, dialer)
        self.run_members = self._run_members(settings)
        self.relaying = self._relaying(settings, dialer)
        self.reach = Reach(self.membership, self.run_members, self.client, self.node_observer, self.relaying)
        self.monitor = self.reach.monitor
        self._tracking = Tracking(settings, resumes=True)
        super().__init__(
            settings,
            Plan(policy, configure(policy, settings.policy.options)),
            store=home,
            network=self.client,
            members=self.run_members,
            trainer=ThreadTrainer(thread, lambda account: learner_at(settings, place, account, role.poison)),
            observer=self.node_observer,
            log=structlog.get_logger("pfl_node.node.lifecycle"),
            # Sender ids can be trusted on the single machine of a lab, and where TLS authenticates callers.
            certain=role_of is not None or self.tls is not None or settings.guard.names,
            role=role,
            observe=both(observe, self._tracking.observer(home.identity.id, self.membership.me.name)),
        )
        self._index = place.index
        self._connect_host()
        self.endpoint.listener.busy_share = BusyShare(thread)

    def _connect_host(self) -> None:
        self.host.tell = self.client.traffic.tell = self.node_observer.tell
        self.host.member = self.run_members.present
        self.client.encoding.training = lambda: self.work.training
        if self.tls:
            self.tls.auth.on_refused = lambda call, why, who: self.host.count(call, why, who, 0)

    def _run_members(self, settings: Settings) -> RunMembers:
        return RunMembers(
            self.membership,
            run=settings.run,
            rounds=settings.rounds,
            seeds=settings.peer_seed,
            on_event=self.node_observer.membership,
            keep=self._keep_incarnation,
            reaches=lambda member: reaches(self.client, member),
        )

    def _relaying(self, settings: Settings, dialer: Dialer) -> Relaying:
        relaying = Relaying(
            settings,
            self.home.identity.id,
            dialer=dialer,
            endpoint=self.endpoint,
            membership=self.membership,
            changed=lambda: self.reach.restate(),
        )
        self.relay = relaying.rendezvous
        return relaying

    def _membership(self, settings: Settings, dialer: Dialer) -> Membership:
        who = self.home.identity
        if settings.privacy.dp_correlated:
            self.pair_keys = self._make_pair_keys()
            self.shared_secret = self.pair_keys.secret
        me = Member(
            id=who.id,
            name=settings.name or f"node-{who.id[:6]}",
            run=settings.run,
            incarnation=who.incarnation,
            offers_relay=settings.relay.serve,
            pair_key=self.pair_keys.public if self.pair_keys else b"",
        )
        return attach_membership(
            self.endpoint,
            me,
            settings.membership,
            rng=random.Random(f"{settings.seed}/membership/{who.id}"),
            on_event=self._on_member_event,
            dialer=dialer,
        )

    def _make_pair_keys(self) -> KeyAgreement:
        from pfl_node.security.key_agreement import KeyAgreement

        return KeyAgreement(PeerId(self.home.identity.id), lambda peer: self.run_members.pair_key(peer))

    async def _find_address(self, patience: float = PATIENCE) -> str:
        bound, mine = self.endpoint, self.settings
        others = [self._proxy.address] if self._proxy else mine.peer_seed
        return await advertised_address(mine.advertise, bound.host, bound.port, others, patience=patience)

    def _moved(self, address: str) -> None:
        log.info("this machine has a new address", address=address, before=self.address)
        self.address = address
        self.membership.move(address)
        self.monitor.check()

    def _on_member_event(self, event: MemberEvent) -> None:
        self.run_members.on_event(event)
        self.reach.on_event(event)

    def _keep_incarnation(self, incarnation: int) -> None:
        """A failed write is harmless: after a restart the node learns its incarnation from its peers."""
        try:
            self.store.keep_incarnation(incarnation)
        except StoreError as error:
            log.error("the incarnation was not written; training goes on", error=str(error))

    def _keep_settings(self) -> None:
        """`pfl_node.load` rebuilds the model from these settings. Secrets are left out."""
        settings = self.settings
        task = {"name": plugin.absolute(settings.task.name), "index": self._index}
        policy = {"name": plugin.absolute(settings.policy.name)}
        changed = {
            "task": settings.task.model_copy(update=task),
            "policy": settings.policy.model_copy(update=policy),
            "data_dir": self.home.path.absolute(),
        }
        try:
            write_atomic(self.home.settings, dump(settings.model_copy(update=changed)).encode(), what="settings")
        except StoreError as error:
            log.error("the settings were not written; the node starts anyway", error=str(error))

    async def start(self) -> None:
        """Open the port. Does not need torch."""
        self._keep_settings()
        PeerService(
            self.host,
            self.settings.wire,
            status=lambda: status_of(self),
            encoding=self.client.encoding,
            bandwidths=self.client.bandwidths,
        ).attach(self.endpoint)
        attach_events(self.endpoint, self.node_observer)
        attach_reload(self.endpoint, self.reload)
        await self.endpoint.bind(self.settings.listen, self.membership.bind)
        await self.endpoint.start()
        mine, bound = self.settings, self.endpoint
        self.address = await self._find_address()
        self.relaying.start(self.address)
        if mine.advertise is None and is_wildcard(bound.host):
            self._address_watch = AddressWatch(lambda: self._find_address(patience=0.0), self._moved)
            self._address_watch.start(self.address)
        await self.node_observer.open()
        self.reach.start()

    async def _learn(self) -> None:
        await super()._learn()
        assert self.recorder is not None
        check_reports(self.settings.policy.name, self.recorder.reports, had_rounds=self.had_rounds)

    async def close(self) -> None:
        """Release the port, the channels and the directory, however far the node got."""
        if self._address_watch is not None:
            await self._address_watch.close()
        await self.reach.close()
        await self.node_observer.close()
        await self.relaying.close()
        await super().close()
        await asyncio.to_thread(self._tracking.close)
