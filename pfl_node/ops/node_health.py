"""Whether a node takes part in learning, in words: others reach it, models arrive, models leave.

Page, `status`, `/readyz`, metrics and `pfl-node doctor` show the same checks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pfl_node.membership.member import Reachability
from pfl_node.membership.reachability import WHAT_TO_DO
from pfl_node.ops.amounts import span
from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode


class Level(StrEnum):
    OK = "ok"
    WAITING = "waiting"  # nothing is wrong, but the node does not exchange models
    WARN = "warn"
    FAIL = "fail"


GRAVITY = {Level.OK: 0, Level.WARN: 1, Level.WAITING: 2, Level.FAIL: 3}


@dataclass(frozen=True, slots=True)
class HealthCheck:
    name: str
    level: Level
    text: str
    todo: str = ""  # what the operator should do

    def plain(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}


def ok(name: str, text: str) -> HealthCheck:
    return HealthCheck(name, Level.OK, text)


def worst(checks: Iterable[HealthCheck]) -> HealthCheck:
    return max(checks, key=lambda check: GRAVITY[check.level])


def is_green(checks: Iterable[HealthCheck]) -> bool:
    return worst(checks).level in (Level.OK, Level.WARN)


def exchange_checks(node: ObservedNode) -> list[HealthCheck]:
    """The three checks that decide whether a node is green."""
    names = ("reachable", "receiving", "sending")
    if node.plan.policy.solitary:
        return [ok(name, f"policy {node.settings.policy.name} exchanges no models") for name in names]
    if node.state == "done":
        return [ok(name, "the rounds are done") for name in names]
    if node.state != "training":
        return [HealthCheck(name, Level.WAITING, f"the node is {node.state}") for name in names]
    if not node.membership.alive(run=node.settings.run):
        text = f"no other node of the run {node.settings.run!r} is known"
        todo = "" if node.membership.joined else "no seed has answered: check peer_seed and the firewall"
        return [HealthCheck(name, Level.WAITING, text, todo) for name in names]
    return [_reachable(node), _receiving(node), _sending(node)]


def _reachable(node: ObservedNode) -> HealthCheck:
    name, record, monitor = "reachable", node.membership.me, node.monitor
    if record.reachability is Reachability.RELAYED:
        relays = "the relay" if len(record.relays) == 1 else "the relays"
        return ok(name, f"through {relays} {', '.join(record.relays)}")
    if record.reachability is Reachability.UNREACHABLE and monitor.state is Reachability.UNKNOWN:
        return HealthCheck(name, Level.FAIL, "no relay has accepted it", NO_RELAY)
    reached = sorted(result.name for result in monitor.results.values() if result.reached)
    if monitor.state is Reachability.DIRECT:
        return ok(name, f"{', '.join(reached[:3])} reached it at {node.address}")
    failed = next((result for result in monitor.results.values() if not result.reached), None)
    if monitor.state is Reachability.UNREACHABLE and failed:
        why = f" ({failed.reason})" if failed.reason else ""
        text = f"{failed.name} cannot reach it at {failed.address}{why}"
        return HealthCheck(name, Level.FAIL, text, WHAT_TO_DO)
    return HealthCheck(name, Level.WAITING, "no member has dialled back yet")


def _receiving(node: ObservedNode) -> HealthCheck:
    name, exchange = "receiving", node.node_observer.exchange
    flow = exchange.received
    if exchange.receives_nothing:
        return HealthCheck(name, Level.FAIL, f"no model in {flow.quiet} rounds", why_nothing_arrives(node))
    if flow.moved_at is None:
        return HealthCheck(name, Level.WAITING, f"no model has arrived yet{_next_round(node)}")
    return ok(name, f"{flow.total:,} models, the last {_ago(flow.moved_at)}")


def _sending(node: ObservedNode) -> HealthCheck:
    name, exchange = "sending", node.node_observer.exchange
    flow = exchange.sent
    if exchange.sends_nothing:
        failures = node.recorder.failures if node.recorder else {}
        why = ", ".join(f"{call}: {reason}" for call, reason in list(failures)[-3:])
        return HealthCheck(
            name, Level.FAIL, f"no model was accepted in {flow.quiet} rounds ({why})", SENDS_NOTHING
        )
    if flow.moved_at is None:
        waits = node.node_observer.exchange.received.moved_at is None
        return HealthCheck(name, Level.WAITING if waits else Level.OK, "no peer has accepted a model yet")
    return ok(name, f"{flow.total:,} models, the last {_ago(flow.moved_at)}")


NO_RELAY = "start one (pfl-bootstrap --relay) that it can reach, or set network.relays"
SENDS_NOTHING = "check the firewall towards the other sites, and that run, policy and model are the same there"


def why_nothing_arrives(node: ObservedNode) -> str:
    """A hint for the operator, from the known reachability and refusals."""
    if node.monitor.state is Reachability.UNREACHABLE and not node.membership.me.relays:
        return f"nobody can connect to {node.address}: {WHAT_TO_DO}"
    left_out = node.run_members.left_out()
    if left_out and not node.peers():
        return f"this node cannot connect to {', '.join(m.name for m in left_out.values())}: check the firewall"
    if node.host.refused:
        reasons = ", ".join(sorted(node.host.refused))
        return f"messages were refused here ({reasons}): run, policy and model must be the same at all sites"
    return "check that the others do rounds of the same run and policy, and the connection between the sites"


def _next_round(node: ObservedNode) -> str:
    """The time of the next round, if the node waits for it."""
    facts = node.driver.schedule.facts() if node.driver else None
    return f"; the next round begins at {facts['at'][:16].replace('T', ' ')}" if facts and facts["at"] else ""


def _ago(moment: float) -> str:
    return f"{span(round(max(0.0, time.monotonic() - moment)))} ago"


def peer_table(node: ObservedNode) -> list[dict[str, Any]]:
    """For every node of the run: does it reach this one, does this one reach it, what was exchanged."""
    moved, results, left_out = TransferTotals.of(node), node.monitor.results, node.run_members.left_out()
    called = node.host.received + node.host.served
    relayed = node.membership.me.reachability is Reachability.RELAYED
    return [
        {
            "id": member.id,
            "name": member.name,
            "reachability": str(member.reachability),
            "reaches_me": _reaches_me(
                results[member.id].reached if member.id in results else None, called[peer], relayed=relayed
            ),
            "relayed": relayed,
            "why_not": results[member.id].reason if member.id in results else "",
            "dialled": peer not in left_out,
            "dial_error": _dial_error(node, peer, member.dial_address),
            "received": moved.models_received[peer],
            "sent": moved.models_sent[peer],
        }
        for member in node.membership.alive(run=node.settings.run)[:PEERS]
        for peer in [PeerId(member.id)]
    ]


PEERS = 128  # rows of the table


def _reaches_me(dialled: bool | None, calls: int, *, relayed: bool) -> bool | None:
    """A peer that has exchanged models over its own calls has reached this node; None: not known. A peer that
    cannot dial a relayed node may still call it through the relay."""
    if dialled is None or (relayed and not dialled):
        return True if calls else None
    return dialled


def _dial_error(node: ObservedNode, peer: PeerId, address: str) -> str:
    record = node.client.dials.of(peer, address)
    return record.reason if record and record.failures else ""


def health_of(node: ObservedNode, checks: Sequence[HealthCheck]) -> dict[str, Any]:
    """JSON values for the status: the worst of the three checks is the level of the node."""
    first = worst(checks)
    return {
        "level": str(first.level),
        "green": is_green(checks),
        "reason": "" if first.level is Level.OK else first.text,
        "todo": first.todo,
        "receives_nothing": node.node_observer.exchange.receives_nothing,
        "checks": [check.plain() for check in checks],
        "peers": peer_table(node),
    }
