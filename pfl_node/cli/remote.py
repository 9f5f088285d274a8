"""Calls to a running node over gRPC. Every call has a deadline; a failure is a PeerError."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pfl_node.address import is_loopback, parse_address
from pfl_node.cli.client_credentials import CREDENTIALS
from pfl_node.errors import PeerError, PeerGone, Reason, Refused, TaskError
from pfl_node.jsonable import json_object

if TYPE_CHECKING:
    import grpc

    from pfl_node.security.credentials import Credentials

A = TypeVar("A")
REFUSED = "nothing listens there (connection refused)"


@contextmanager
def connected(address: str, timeout: float) -> Iterator[Remote]:
    """The node at this address. The connection is opened by the first call."""
    parse_address(address)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC logs refused connections on stderr
    credentials = CREDENTIALS.get().load()
    with ExitStack() as stack:
        yield Remote(address, lambda: stack.enter_context(_dial(address, credentials, timeout)), timeout)


def _dial(address: str, credentials: Credentials | None, timeout: float) -> grpc.Channel:
    """Use TLS if there are credentials, unless they come from the directory of a node without TLS on loopback."""
    import grpc

    options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0), ("grpc.initial_reconnect_backoff_ms", 100)]
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    import asyncio

    from pfl_node.security.handshake import read_certificate

    try:
        certificate = asyncio.run(read_certificate(address, credentials, timeout))
    except Refused as refused:
        if (
            refused.reason is Reason.NO_TLS
            and CREDENTIALS.get().by_directory
            and is_loopback(parse_address(address)[0])
        ):
            return grpc.insecure_channel(address, options=options)
        raise
    channel = grpc.ssl_channel_credentials(certificate.pem, credentials.key, credentials.chain)
    name = next(iter(certificate.names), certificate.subject)
    return grpc.secure_channel(address, channel, options=[*options, ("grpc.ssl_target_name_override", name)])


class Remote:
    def __init__(self, address: str, dial: Callable[[], grpc.Channel], timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._dial = dial
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        """The channel, opened on first use. Raises PeerError."""
        self._channel = self._channel or self._dial()
        return self._channel

    def serving(self) -> bool:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = self._call(stub.Check, health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def members(self) -> tuple[str, list[dict[str, Any]]]:
        """The id of the node, and all members it knows, including itself."""
        from pfl_node.membership import membership_pb2
        from pfl_node.wire import membership_pb2_grpc

        stub = membership_pb2_grpc.MembershipStub(self.channel)
        reply = self._call(stub.List, membership_pb2.ListRequest())
        states, reach = membership_pb2.Member.State, membership_pb2.Member.Reachability
        found = [
            {
                "id": m.id,
                "name": m.name,
                "address": m.address,
                "state": states.Name(m.state).lower(),
                "role": m.role,
                "run": m.run,
                "round": m.round,
                "reach": reach.Name(m.reachability).lower(),
            }
            for m in sorted(reply.members, key=lambda m: (m.role, m.name, m.id))
        ]
        return reply.self, found

    def status(self) -> dict[str, Any]:
        """A bootstrap has no status of its own: it answers with its row in the member list."""
        import grpc

        from pfl_node.ops.status import facts_of
        from pfl_node.wire import peer_pb2, peer_pb2_grpc

        stub = peer_pb2_grpc.PeerStub(self.channel)
        try:
            status = stub.GetStatus(peer_pb2.StatusRequest(), timeout=self.timeout)
        except grpc.RpcError as e:
            if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise self._error(e) from e
            me, members = self.members()
            return next((m for m in members if m["id"] == me), {"id": me})
        return facts_of(status)

    def reload(self) -> dict[str, int]:
        """Let the node call its task again; returns the samples by split. Raises TaskError."""
        from pfl_node.wire import peer_pb2, peer_pb2_grpc

        stub = peer_pb2_grpc.PeerStub(self.channel)
        self.serving()  # a call may take long, so check first that the node answers
        reply = self._call(stub.Reload, peer_pb2.ReloadRequest())
        if reply.error:
            raise TaskError(f"{self.address} keeps its old data: {reply.error}")
        return {split: reply.samples[split] for split in ("train", "val", "test")}

    def events(
        self, *, follow: bool, kinds: Sequence[str] = (), last: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Past events, and with `follow` new ones until the node ends."""
        import grpc

        from pfl_node.wire import peer_pb2, peer_pb2_grpc

        if last == 0 and not follow:
            return
        request = peer_pb2.WatchRequest(follow=follow, kinds=kinds, last=last or 0)
        self.serving()  # the stream has no deadline, so check first that the node answers
        try:
            stub = peer_pb2_grpc.PeerStub(self.channel)
            for e in stub.WatchEvents(request, timeout=None if follow else self.timeout):
                yield {"number": e.number, "time": round(e.time, 3), "kind": e.kind, "data": json_object(e.json)}
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _call(self, call: Callable[..., A], request: Any) -> A:
        import grpc

        try:
            return call(request, timeout=self.timeout)
        except grpc.RpcError as e:
            raise self._error(e) from e

    def _error(self, error: grpc.RpcError) -> PeerError:
        metadata: Any = error.trailing_metadata()
        given = dict(metadata or ()).get("pfl-reason")
        if given in set(Reason):
            return Refused(Reason(given), error.details() or str(given), self.address)
        ended = any(word in (error.details() or "") for word in ("closed", "reset"))
        if error.code().name == "UNAVAILABLE" and ended and self._speaks_tls():
            return Refused(Reason.NO_TLS, _certificate_needed(), self.address)
        return PeerGone(self.address, why(error.code().name, error.details() or "", self.timeout))

    def _speaks_tls(self) -> bool:
        import asyncio

        from pfl_node.security.handshake import speaks_tls

        return asyncio.run(speaks_tls(self.address, min(self.timeout, 1.0))) is not None


def _certificate_needed() -> str:
    given = CREDENTIALS.get().data_dir
    if given is None:
        return "the node uses TLS: present a certificate with --data-dir DIR, or --ca, --cert and --key"
    return f"the node uses TLS, and {given} has no key.pem: give the directory of a node or an operator"


def why(code: str, details: str, timeout: float) -> str:
    known = {
        "connection refused": REFUSED,
        "domain name not found": "no such host",
        "name or service not known": "no such host",
        "dns resolution failed": "no such host",
        "network is unreachable": "the network is unreachable",
        "no route to host": "there is no route to that host",
    }
    lower = details.lower()
    if text := next((text for sign, text in known.items() if sign in lower), None):
        return text
    if code == "DEADLINE_EXCEEDED":
        return f"no answer within {timeout:g} s"
    if code == "UNIMPLEMENTED":
        return "the server there is not a pfl-node"
    return f"no answer ({code.lower().replace('_', ' ')}: {details.rpartition(': ')[2]})"
