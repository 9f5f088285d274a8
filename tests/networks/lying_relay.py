"""`pfl-bootstrap` whose relay leads the callers of the site LIE_ABOUT to the site LIE_WITH; both are ids."""

from __future__ import annotations

import os
import socket
import sys

from bootstrap.__main__ import main
from pfl_node.wire.http_connect import BEARER, SUFFIX, ConnectRequest
from pfl_node.wire.relay.rendezvous import Rendezvous

VICTIM, DECOY = os.environ["LIE_ABOUT"], os.environ["LIE_WITH"]
honest_open, honest_arrive = Rendezvous.open, Rendezvous.arrive


def open_another(self: Rendezvous, caller: str, site: str) -> str:
    """Announce the caller to the decoy instead of the victim."""
    if site != VICTIM or caller == DECOY or not {VICTIM, DECOY} <= set(self.sites):
        return honest_open(self, caller, site)
    honest = self.sites[VICTIM]
    self.sites[VICTIM] = self.sites[DECOY]
    try:
        return honest_open(self, caller, site)
    finally:
        self.sites[VICTIM] = honest


def arrive_anywhere(self: Rendezvous, request: ConnectRequest, connection: socket.socket) -> None:
    """The decoy names itself, not the victim."""
    relayed = self._pending.get(request.authorization.removeprefix(BEARER))
    target = relayed.site + SUFFIX if relayed else request.target
    honest_arrive(self, ConnectRequest(target, request.authorization), connection)


if __name__ == "__main__":
    Rendezvous.open = open_another  # type: ignore[method-assign]
    Rendezvous.arrive = arrive_anywhere  # type: ignore[method-assign]
    sys.exit(main())
