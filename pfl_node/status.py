"""A node's answer to "how are you": the fields of the proto, and the rest as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from pfl_node.plain import plain
from pfl_node.wire.peer_pb2 import Status

if TYPE_CHECKING:
    from pfl_node.node import Node


def status_of(node: Node) -> Status:
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
        uptime=time.monotonic() - node.started,
        json=json.dumps(details_of(node), allow_nan=False),
    )


def details_of(node: Node) -> dict[str, Any]:
    """Plain values only, as JSON has them."""
    models, nbytes = node.client.traffic.models, node.client.traffic.bytes
    fetched = Counter({peer: n for (peer, way), n in models.items() if way == "in"})
    pushed = Counter({peer: n for (peer, way), n in models.items() if way == "out"})
    details: dict[str, Any] = {
        "peers": len(node.company()),
        "waiting_for": list(node.driver.waiting_for) if node.driver else [],
        "models_waiting": node.mailbox.held,
        "models_sent": pushed + node.reception.served,
        "models_received": fetched + node.reception.received,
        "bytes_sent": sum(n for (_, way), n in nbytes.items() if way == "out") + node.reception.bytes_out,
        "bytes_received": sum(n for (_, way), n in nbytes.items() if way == "in") + node.reception.bytes_in,
        "refused": node.reception.refused,
        "membership": node.membership.counters,
    }
    if chronicle := node.chronicle:
        details |= {
            "samples": chronicle.learner.samples,
            "work": {**node.work.models, "seconds": round(node.work.seconds, 3)},
            "failed_calls": {f"{call} {why}": n for (call, why), n in sorted(chronicle.failures.items())},
            "measured": {
                split: {"loss": e.loss, "accuracy": e.accuracy} for split, e in chronicle.measured.items()
            },
            "told": chronicle.told,
        }
    return dict(plain(details))
