"""The calls of a relay. With TLS, certificates decide who may use it. Without TLS callers must be members; a site
need not be a member, because it becomes one by answering a ping, which must reach it through the relay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from pfl_node.errors import Reason, Refused
from pfl_node.security.caller import CALLER, check_sender
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.relay.relay_limits import RelayLimits
from pfl_node.wire.relay.rendezvous import Rendezvous
from pfl_node.wire.relay_pb2 import Announcement, ListenRequest, OpenReply, OpenRequest
from pfl_node.wire.relay_pb2_grpc import RelayServicer, add_RelayServicer_to_server
from pfl_node.wire.statuses import STATUS, refusal_metadata

Context = Any


def attach_relay(
    endpoint: Endpoint, member: Callable[[str], bool], limits: RelayLimits | None = None
) -> Rendezvous:
    """A relay at an endpoint that is not bound yet. `member`: is this the id of a present member?"""
    rendezvous = Rendezvous(limits)
    endpoint.add("pfl.v1.Relay", partial(add_RelayServicer_to_server, RelayService(rendezvous, member)))
    endpoint.serve_tunnels(rendezvous)
    return rendezvous


class RelayService(RelayServicer):
    def __init__(self, rendezvous: Rendezvous, member: Callable[[str], bool]) -> None:
        self._rendezvous = rendezvous
        self._member = member

    async def Listen(self, request: ListenRequest, context: Context) -> AsyncIterator[Announcement]:  # noqa: N802
        try:
            check_sender(request.site)
            registration = self._rendezvous.register(request.site)
        except Refused as refused:
            await _abort(context, refused)
            raise
        try:
            yield Announcement()
            while (announced := await registration.next()) is not None:
                yield Announcement(ticket=announced.ticket, caller=announced.caller)
        finally:
            self._rendezvous.unregister(registration)

    async def Open(self, request: OpenRequest, context: Context) -> OpenReply:  # noqa: N802
        try:
            self._check_caller(request.caller)
            return OpenReply(ticket=self._rendezvous.open(request.caller, request.site))
        except Refused as refused:
            await _abort(context, refused)
            raise

    def _check_caller(self, caller: str) -> None:
        check_sender(caller)
        if CALLER.get() is None and not self._member(caller):
            raise Refused(Reason.UNKNOWN_PEER, f"{caller[:64]} is not a member here; join first")


async def _abort(context: Context, refused: Refused) -> None:
    await context.abort(STATUS[refused.reason], refused.text, refusal_metadata(refused))
