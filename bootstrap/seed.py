"""The running seed: an endpoint, a membership, and a status."""

from __future__ import annotations

import json
import logging
import secrets
import time
from functools import partial
from random import Random
from typing import Any

from bootstrap.options import ABOVE, Options
from pfl_node.daemon.advertise import advertised_address
from pfl_node.enrolment.enrolment_server import EnrolmentServer
from pfl_node.enrolment.frames import enrol_address
from pfl_node.enrolment.invitations import Invitations
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Changed, Died, MemberEvent, Suspected
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.store.data_dir import DataDir
from pfl_node.types import PeerId
from pfl_node.wire.connector import Connector
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.peer_pb2 import Status, StatusRequest
from pfl_node.wire.peer_pb2_grpc import PeerServicer, add_PeerServicer_to_server
from pfl_node.wire.relay.relay_caller import RelayCaller
from pfl_node.wire.relay.relay_service import attach_relay
from pfl_node.wire.tls import Tls

log = logging.getLogger("bootstrap")

LEVELS: dict[type[MemberEvent], int] = {Suspected: logging.DEBUG, Died: logging.WARNING}


class Seed(PeerServicer):
    """Of the Peer service it implements only GetStatus."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.address = ""  # that others dial
        self._started = time.monotonic()
        self._home = DataDir.open(options.data_dir) if options.data_dir else None
        self._tls = Tls(options.tls_files, name=options.name or "") if options.why_tls else None
        if self._tls:
            self._tls.trust.warn_of_exposed_key()
        if self._home and self._tls:
            self._home.adopt(self._tls.id)
        identity = self._home.identity if self._home else None
        member = self._tls.id if self._tls else identity.id if identity else secrets.token_hex(8)
        me = Member(
            member,
            options.name or f"bootstrap-{member[:6]}",
            role="bootstrap",
            run="",
            incarnation=identity.incarnation if identity else 1,
            offers_relay=options.relay,
        )
        self.endpoint = Endpoint(tls=self._tls)
        self._dialer = self._tls.dialer if self._tls else Dialer()
        self.membership = attach_membership(
            self.endpoint,
            me,
            SwimConfig(transport=options.membership),
            rng=Random(member),
            on_event=self._on_event,
            dialer=self._dialer,
        )
        self.relay = attach_relay(self.endpoint, self._is_member) if options.relay else None
        self._caller = self._dialer.paths.relays = RelayCaller(PeerId(member), self._dialer, Connector())
        self.endpoint.add("pfl.v1.Peer", partial(add_PeerServicer_to_server, self))
        self.enrolment = self._enrolment()

    def _enrolment(self) -> EnrolmentServer | None:
        if self._options.enrol is None or self._tls is None or self._home is None:
            return None
        return EnrolmentServer(Invitations(self._home.path / "enrolment"), self._tls.trust)

    async def start(self) -> None:
        await self.endpoint.bind(self._options.listen, self.membership.bind)
        await self.endpoint.start()
        mine, bound = self._options, self.endpoint
        self.address = await advertised_address(mine.advertise, bound.host, bound.port, mine.peer_seed)
        if self.enrolment is not None:
            chosen = mine.enrol or ABOVE
            await self.enrolment.start(enrol_address(bound.address) if chosen == ABOVE else chosen)
        if self.relay is not None:
            self._caller.own = (self.address, self.relay)
        await self.membership.start(self._options.peer_seed, advertise=self.address)
        await self.endpoint.serving(True)

    async def stop(self) -> None:
        if self.enrolment is not None:
            await self.enrolment.stop()
        await self.membership.leave()
        await self.membership.close()
        if self.relay is not None:
            self.relay.close()
        await self._caller.close()
        await self.endpoint.stop()
        if self._home is not None:
            self._home.close()

    async def GetStatus(self, request: StatusRequest, context: Any) -> Status:  # noqa: N802, ARG002
        me = self.membership.me
        nodes = self.membership.alive()
        return Status(
            id=me.id,
            name=me.name,
            role=me.role,
            address=me.address,
            state="serving",
            round=max((node.round for node in nodes), default=0),
            uptime=time.monotonic() - self._started,
            json=json.dumps(self._details()),
        )

    def _details(self) -> dict[str, Any]:
        details: dict[str, Any] = {
            "peers": len(self.membership.alive()),
            "counters": dict(self.membership.counters),
        }
        if self.enrolment is not None:
            pending = len(self.enrolment.invitations.pending())
            details["enrolment"] = {"pending": pending, **self.enrolment.counters}
        if self.relay is not None:
            details["relay"] = self.relay.figures()
        return details

    def _is_member(self, member: str) -> bool:
        known = self.membership.get(member)
        return known is not None and known.state.present

    def _on_event(self, event: MemberEvent) -> None:
        member = event.member
        if not isinstance(event, Changed):
            facts = {"peer": member.id, "peer_name": member.name, "address": member.address, "run": member.run}
            level = LEVELS.get(type(event), logging.INFO)
            log.log(level, type(event).__name__.lower(), extra=facts)
        elif self._home is not None and member.id == self.membership.me.id:
            self._home.keep_incarnation(member.incarnation)
