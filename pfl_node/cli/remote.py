"""What the reading verbs ask of a running node over gRPC. Every call has a deadline; a failure is a PeerGone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pfl_node.address import parse_address
from pfl_node.errors import PeerGone

if TYPE_CHECKING:
    import grpc

A = TypeVar("A")
NOBODY = "nothing listens there (connection refused)"


@contextmanager
def connected(address: str, timeout: float) -> Iterator[Remote]:
    """The node at this address; nothing is sent before the first question."""
    parse_address(address)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library would tell of a refused connection on stderr
    import grpc

    options = [("grpc.enable_http_proxy", 0), ("grpc.initial_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(address, options=options) as channel:
        yield Remote(address, channel, timeout)


class Remote:
    """Questions to one node, each within `timeout` seconds."""

    def __init__(self, address: str, channel: grpc.Channel, timeout: float) -> None:
        self.address, self.channel, self.timeout = address, channel, timeout

    def serving(self) -> bool:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = self._ask(stub.Check, health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def members(self) -> tuple[str, list[dict[str, Any]]]:
        """The id of the asked one, and everybody it knows, itself included."""
        from pfl_node.wire import membership_pb2, membership_pb2_grpc

        stub = membership_pb2_grpc.MembershipStub(self.channel)
        reply = self._ask(stub.List, membership_pb2.ListRequest())
        states = membership_pb2.Member.State
        found = [
            {
                "id": m.id,
                "name": m.name,
                "address": m.address,
                "state": states.Name(m.state).lower(),
                "role": m.role,
                "run": m.run,
                "round": m.round,
            }
            for m in sorted(reply.members, key=lambda m: (m.role, m.name, m.id))
        ]
        return reply.self, found

    def status(self) -> dict[str, Any]:
        """A node tells about itself; a bootstrap has no more to tell than what its members see."""
        import grpc

        from pfl_node.wire import peer_pb2, peer_pb2_grpc

        stub = peer_pb2_grpc.PeerStub(self.channel)
        try:
            status = stub.GetStatus(peer_pb2.StatusRequest(), timeout=self.timeout)
        except grpc.RpcError as e:
            if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise self._gone(e) from e
            me, members = self.members()
            return next((m for m in members if m["id"] == me), {"id": me})
        names = ("id", "name", "role", "run", "address", "state", "round", "policy", "task", "uptime")
        facts = {name: getattr(status, name) for name in names}
        facts["rounds"] = status.rounds if status.HasField("rounds") else None
        return {**facts, **{k: v for k, v in _object(status.json).items() if k not in facts}}

    def _ask(self, call: Callable[..., A], request: Any) -> A:
        import grpc

        try:
            return call(request, timeout=self.timeout)
        except grpc.RpcError as e:
            raise self._gone(e) from e

    def _gone(self, error: grpc.RpcError) -> PeerGone:
        return PeerGone(self.address, why(error.code().name, error.details() or "", self.timeout))


def why(code: str, details: str, timeout: float) -> str:
    """A failed call in a few words."""
    known = {
        "connection refused": NOBODY,
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
        return "something answers there, but it is no node"
    return f"no answer ({code.lower().replace('_', ' ')}: {details.rpartition(': ')[2]})"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
