"""The status of a node: the fields of the protocol buffer, and details as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pfl_node import __version__
from pfl_node.jsonable import json_object, plain
from pfl_node.node.clock import now
from pfl_node.ops.machine_checks import machine_checks
from pfl_node.ops.node_health import exchange_checks, health_of
from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.wire.peer_pb2 import Status

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode


def status_of(node: ObservedNode) -> Status:
    settings, policy = node.settings, node.policy
    return Status(
        id=node.id,
        name=node.name,
        role="node",
        run=settings.run,
        address=node.address,
        state=node.state,
        round=policy.round if policy else 0,
        rounds=settings.rounds,
        policy=settings.policy.name,
        task=settings.task.name,
        uptime=now() - node.started,
        json=json.dumps(details_of(node), allow_nan=False),
    )


def facts_of(status: Status) -> dict[str, Any]:
    """A status as one flat table of JSON values."""
    names = ("id", "name", "role", "run", "address", "state", "round", "policy", "task", "uptime")
    facts = {name: getattr(status, name) for name in names}
    facts["rounds"] = status.rounds if status.HasField("rounds") else None
    return {**facts, **json_object(status.json), **facts}


def details_of(node: ObservedNode) -> dict[str, Any]:
    """The details of a status, as JSON values."""
    moved = TransferTotals.of(node)
    details: dict[str, Any] = {
        "peers": len(node.peers()),
        "waiting_for": list(node.driver.waits.peers) if node.driver else [],
        "waiting": node.driver.waits.table(now()) if node.driver else [],
        "next_round": node.driver.schedule.facts() if node.driver else None,
        "models_waiting": node.mailbox.held,
        "models_sent": moved.models_sent,
        "models_received": moved.models_received,
        "bytes_sent": moved.sent,
        "bytes_received": moved.received,
        "bytes_per_second_to": node.client.bandwidths.measured(),
        "refused": node.host.refused,
        "guard": node.guard.status(now()),
        "privacy": node.privacy.status(),
        "honest": node.role.honest,
        "reachability": str(node.membership.me.reachability),
        "relays": node.membership.me.relays,
        "health": health_of(node, exchange_checks(node)),
        "machine": [check.plain() for check in machine_checks(node)],
        "membership": node.membership.counters,
        "version": __version__,
        "learns_with": {peer: round(tie, 3) for peer, tie in node.node_observer.ties.lately.items()},
        "learned_from": node.node_observer.ties.total,
    }
    if node.relay is not None:
        details["relay"] = node.relay.figures()
    if recorder := node.recorder:
        details |= {
            "samples": recorder.learner.samples,
            "cluster": recorder.learner.cluster,
            "work": {**node.work.models, "seconds": round(node.work.seconds, 3)},
            "given_up": recorder.given_up,
            "written": recorder.written(),
            "failed_calls": {f"{call} {why}": n for (call, why), n in sorted(recorder.failures.items())},
            "measured": recorder.by_split(),
            "headline": asdict(recorder.learner.headline),
            "told": recorder.reported,
        }
    return dict(plain(details))
