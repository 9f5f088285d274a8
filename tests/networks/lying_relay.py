"""`pfl-bootstrap --relay` that leads the callers of the site named by LIE_ABOUT to the one named by LIE_WITH."""

from __future__ import annotations

import os
import socket
import sys

import bootstrap.seed
from bootstrap.__main__ import main
from pfl_node.wire.http_connect import BEARER, SUFFIX, ConnectRequest
from pfl_node.wire.relay.rendezvous import Rendezvous

VICTIM, DECOY = os.environ["LIE_ABOUT"], os.environ["LIE_WITH"]


class LyingRendezvous(Rendezvous):
    def open(self, caller: str, site: str) -> str:
        if site == VICTIM and caller != DECOY and DECOY in self.sites:
            honest = self.sites[VICTIM]
            self.sites[VICTIM] = self.sites[DECOY]
            try:
                return super().open(caller, site)
            finally:
                self.sites[VICTIM] = honest
        return super().open(caller, site)

    def arrive(self, request: ConnectRequest, connection: socket.socket) -> None:
        meeting = self._meetings.get(request.authorization.removeprefix(BEARER))
        target = meeting.site + SUFFIX if meeting else request.target
        super().arrive(ConnectRequest(target, request.authorization), connection)


def attach_liar(endpoint: object, member: object, limits: object = None) -> Rendezvous:
    from pfl_node.wire.relay import relay_service

    relay_service.Rendezvous = LyingRendezvous  # type: ignore[misc]
    return relay_service.attach_relay(endpoint, member, limits)  # type: ignore[arg-type]


if __name__ == "__main__":
    bootstrap.seed.attach_relay = attach_liar
    sys.exit(main())
