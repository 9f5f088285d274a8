"""Authorization of every connection and every call to a TLS endpoint."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic

from pfl_node.errors import Reason, Refused
from pfl_node.security.certificate import Certificate
from pfl_node.security.trust import Trust

log = logging.getLogger(__name__)

READ_ONLY = frozenset({"GetStatus", "GetHistory", "WatchEvents", "List", "Check", "Watch", "ServerReflectionInfo"})
OPERATOR_CALLS = frozenset({"Reload"})  # allowed for operators and for the node's own certificate
LOG_INTERVAL = 60.0  # seconds between log lines about the same caller and reason
LOG_LIMIT = 1024  # pairs of caller and reason


class Authorization:
    """Checks, counts and logs. Calls are checked again: the lists may have changed since the connection opened."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.refused: Counter[tuple[str, str]] = Counter()  # (call or "handshake", reason)
        self.on_refused: Callable[[str, str, str], None] | None = None  # call, reason, id
        self._next_log: dict[tuple[str, str], float] = {}  # by (caller, reason)

    def check_call(self, call: str, certificate: Certificate | None, host: str) -> None:
        """Raises Refused."""
        try:
            if certificate is None:
                raise Refused(Reason.NO_TLS, "this connection has no client certificate")
            self.trust.check(certificate)
            if certificate.operator and call not in READ_ONLY | OPERATOR_CALLS:
                text = f"{certificate.id} is an operator, which may read but not call {call}"
                raise Refused(Reason.NOT_ALLOWED, text)
            if call in OPERATOR_CALLS and not certificate.operator and certificate.id != self.trust.me:
                text = f"{call} needs an operator's certificate or the node's own, not that of {certificate.id}"
                raise Refused(Reason.NOT_ALLOWED, text)
        except Refused as refused:
            peer = certificate.id if certificate else ""
            self._count(call, refused.reason, peer)
            self._log((peer, refused.reason), "refused a call from %s: %s", host, refused.text)
            raise

    def connection_refused(self, host: str, refused: Refused, certificate: Certificate | None) -> None:
        peer = certificate.id if certificate else ""
        self._count("handshake", refused.reason, peer)
        self._log((peer or host, refused.reason), "refused a connection from %s: %s", host, refused.text)

    def _count(self, call: str, reason: Reason, peer: str) -> None:
        self.refused[call, str(reason)] += 1
        if self.on_refused is not None:
            self.on_refused(call, str(reason), peer)

    def _log(self, about: tuple[str, str], text: str, *arguments: str) -> None:
        now = monotonic()
        if now < self._next_log.get(about, 0.0):
            return
        if len(self._next_log) >= LOG_LIMIT:
            self._next_log.clear()
        self._next_log[about] = now + LOG_INTERVAL
        log.warning(text, *arguments)
