"""The metrics of a node for Prometheus: one table, read at each scrape.

Series of a peer exist while it is a member; the totals include former peers.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pfl_node import __version__
from pfl_node.membership.member import Reachability, State
from pfl_node.ops.node_health import exchange_checks, is_green
from pfl_node.ops.transfer_totals import TransferTotals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from pfl_node.ops.observed_node import ObservedNode

SETTINGS_THAT_PAUSE = ("round.every", "round.hours", "round.alone")
STATES = ("starting", "joining", "training", "done", "leaving")
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]  # label values and sample


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric: name, labels, help, and how to read it."""

    name: str
    kind: Literal["counter", "gauge", "info", "summary"]
    labels: Labels
    help: str
    read: Callable[[Any], Samples]  # argument: a PolicyNode

    @property
    def exported(self) -> str:
        """The name with the suffix of Prometheus' conventions."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def registry_of(node: ObservedNode) -> CollectorRegistry:
    """A registry per node, because one process may run many nodes."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(_Collector(node))
    ProcessCollector(registry=registry)
    return registry


class _Collector:
    def __init__(self, node: ObservedNode) -> None:
        self._node = node

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for figure in FIGURES:
            yield _family(figure, self._node)


def _family(figure: Figure, node: ObservedNode) -> Any:
    from prometheus_client import metrics_core as core

    kinds: Mapping[str, Any] = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "info": core.InfoMetricFamily,
        "summary": core.SummaryMetricFamily,
    }
    family = kinds[figure.kind](figure.name, figure.help, labels=figure.labels)
    for labels, value in figure.read(node):
        match figure.kind:
            case "info":
                family.add_metric(labels, {})
            case "summary":
                family.add_metric(labels, count_value=node.node_observer.rounds, sum_value=value)
            case _:
                family.add_metric(labels, value)
    return family


def _one(value: float | None) -> Samples:
    return [] if value is None else [((), float(value))]


def _identity(node: ObservedNode) -> Samples:
    s = node.settings
    return [((node.id, node.name, s.run, s.policy.name, s.task.name, node.address), 1.0)]


def _state(node: ObservedNode) -> Samples:
    return [((state,), float(state == node.state)) for state in STATES]


def _measured(what: str) -> Callable[[ObservedNode], Samples]:
    def read(node: ObservedNode) -> Samples:
        measured = node.recorder.by_split() if node.recorder else {}
        return [((split,), figures[what]) for split, figures in sorted(measured.items()) if what in figures]

    return read


def _task_metrics(node: ObservedNode) -> Samples:
    measured = node.recorder.measured if node.recorder else {}
    return [((split, name), n) for split, e in sorted(measured.items()) for name, n in sorted(e.metrics.items())]


def _models(node: ObservedNode) -> Samples:
    moved = TransferTotals.of(node)
    return [(("sent",), moved.models_sent.total()), (("received",), moved.models_received.total())]


def _bytes(node: ObservedNode) -> Samples:
    moved = TransferTotals.of(node)
    return [(("sent",), moved.sent), (("received",), moved.received)]


def _peer_models(node: ObservedNode) -> Samples:
    moved = TransferTotals.of(node)
    for peer in node.peers():
        yield (peer, "sent"), moved.models_sent[peer]
        yield (peer, "received"), moved.models_received[peer]


def _peer_bytes(node: ObservedNode) -> Samples:
    called, calls = node.client.traffic.bytes, node.host.moved
    for peer in node.peers():
        yield (peer, "sent"), called[peer, "out"] + calls[peer, "out"]
        yield (peer, "received"), called[peer, "in"] + calls[peer, "in"]


def _peer_names(node: ObservedNode) -> Samples:
    for member in node.membership.alive(run=node.settings.run):
        yield (member.id, member.name, str(member.state)), 1.0


def _peer_rounds(node: ObservedNode) -> Samples:
    return [((peer,), round) for peer, round in node.peers.rounds().items()]


def _paused(node: ObservedNode) -> Samples:
    waits_for = node.driver.schedule.next if node.driver else None
    return [((why,), float(waits_for is not None and waits_for.why == why)) for why in SETTINGS_THAT_PAUSE]


def _waiting(node: ObservedNode) -> Samples:
    inbox = len(node.mailbox)
    return [(("inbox",), inbox), (("shelves",), node.mailbox.held - inbox)]


def _members(node: ObservedNode) -> Samples:
    found = Counter(str(member.state) for member in node.membership.members() if member.role == "node")
    return [((str(state),), found[str(state)]) for state in State]


def _served(node: ObservedNode) -> Samples:
    return [((call, outcome), n) for (call, outcome), n in sorted(node.host.calls.items())]


def _failed(node: ObservedNode) -> Samples:
    failures = node.recorder.failures if node.recorder else {}
    return [((call, why), n) for (call, why), n in sorted(failures.items())]


def _checkpoint_age(node: ObservedNode) -> Samples:
    at = node.node_observer.checkpoint_at
    return _one(None if at is None else max(0.0, time.time() - at))


def _checkpoints(node: ObservedNode) -> Samples:
    counts = node.node_observer.hub.counts
    return [(("written",), counts["checkpoint"]), (("failed",), counts["checkpoint_failed"])]


def _reloads(node: ObservedNode) -> Samples:
    counts = node.node_observer.hub.counts
    return [(("reloaded",), counts["reloaded"]), (("failed",), counts["reload_failed"])]


def _oracle(node: ObservedNode) -> Samples:
    spent = node.privacy.oracle.spent if node.privacy.oracle else {}
    return [((peer,), spent[peer]) for peer in node.peers() if peer in spent]


def _expiry(node: ObservedNode) -> Samples:
    return _one(node.tls.trust.credentials.certificate.not_after.timestamp() if node.tls else None)


def _reachability(node: ObservedNode) -> Samples:
    return [((str(r),), float(r is node.membership.me.reachability)) for r in Reachability]


def _left_out(node: ObservedNode) -> Samples:
    return _one(len(node.run_members.left_out()))


def _relay(what: str) -> Callable[[ObservedNode], Samples]:
    """A figure of the relay that this node offers: a number, or numbers by one label."""

    def read(node: ObservedNode) -> Samples:
        found = node.relay.figures()[what] if node.relay is not None else None
        return [((key,), n) for key, n in sorted(found.items())] if isinstance(found, dict) else _one(found)

    return read


def _by(counts: Callable[[Any], Mapping[str, float]]) -> Callable[[ObservedNode], Samples]:
    return lambda node: [((key,), n) for key, n in sorted(counts(node).items())]


N = "pfl_node_"
FIGURES = (
    Figure(N + "build", "info", ("version", "python"), "Versions of pfl-node and Python.",
           lambda _: [((__version__, platform.python_version()), 1.0)]),
    Figure("pfl_node", "info", ("id", "name", "run", "policy", "task", "address"), "Identity.", _identity),
    Figure(N + "uptime_seconds", "gauge", (), "Time since the node was created.",
           lambda n: _one(time.monotonic() - n.started)),
    Figure(N + "state", "gauge", ("state",), "1 for the current state, 0 for the others.", _state),
    Figure(N + "healthy", "gauge", (), "1 while models are exchanged, or none need to be.",
           lambda n: _one(is_green(exchange_checks(n)))),
    Figure(N + "receives_nothing", "gauge", (), "1 if no model arrives for several rounds.",
           lambda n: _one(n.node_observer.exchange.receives_nothing)),
    Figure(N + "reachability", "gauge", ("reachability",),
           "1 for how others connect to this node: unknown, direct, relayed, unreachable; 0 for the others.",
           _reachability),
    Figure(N + "peers_left_out", "gauge", (), "Peers that this node cannot connect to, and therefore leaves out.",
           _left_out),
    Figure(N + "round", "gauge", (), "Current round.",
           lambda n: _one(n.policy.round if n.policy else 0)),
    Figure(N + "planned_rounds", "gauge", (), "Number of rounds after which the node stops; absent: unlimited.",
           lambda n: _one(n.settings.rounds)),
    Figure(N + "paused", "gauge", ("why",), "1 while the next round may not begin yet, by setting.", _paused),
    Figure(N + "rounds", "counter", (), "Rounds done by this process.", lambda n: _one(n.node_observer.rounds)),
    Figure(N + "round_duration_seconds", "summary", (), "From the end of a round to the end of the next.",
           lambda n: _one(n.node_observer.round_seconds)),
    Figure(N + "loss", "gauge", ("split",), "Loss of the personal model at its last evaluation; lower is better.",
           _measured("loss")),
    Figure(N + "accuracy_ratio", "gauge", ("split",), "Accuracy of the personal model at its last evaluation.",
           _measured("accuracy")),
    Figure(N + "metric", "gauge", ("split", "metric"), "Metrics of the task, of the personal model at its last "
           "evaluation.", _task_metrics),
    Figure(N + "learning_seconds", "counter", (), "Time of training and scoring, including queueing.",
           lambda n: _one(n.work.seconds)),
    Figure(N + "worked_models", "counter", ("work",), "Models trained, scored for peers or the policy, evaluated.",
           _by(lambda n: n.work.models)),
    Figure(N + "models", "counter", ("direction",), "Models and parts of models sent and received.",
           _models),
    Figure(N + "transferred_bytes", "counter", ("direction",), "Bytes of models sent and received.", _bytes),
    Figure(N + "peer_models", "counter", ("peer", "direction"), "Models by peer, while it is a member.",
           _peer_models),
    Figure(N + "peer_transferred_bytes", "counter", ("peer", "direction"),
           "Bytes of models by peer, while it is a member.", _peer_bytes),
    Figure(N + "peer_present", "gauge", ("peer", "name", "state"),
           "1 for every other present node of the run.", _peer_names),
    Figure(N + "peer_round", "gauge", ("peer",), "Round of another node, as it reports.", _peer_rounds),
    Figure(N + "waiting_models", "gauge", ("where",), "Models that wait for the policy: inbox, shelves (rounds).",
           _waiting),
    Figure(N + "awaited_peers", "gauge", (), "Peers whose models the current round awaits.",
           lambda n: _one(len(n.driver.waits.peers) if n.driver else 0)),
    Figure(N + "deadline_seconds", "gauge", (), "Time until the last deadline of these peers; absent: none.",
           lambda n: _one(n.driver.waits.left(time.monotonic()) if n.driver else None)),
    Figure(N + "given_up_models", "counter", (), "Models that missed the deadline of their round.",
           lambda n: _one(n.recorder.given_up if n.recorder else 0)),
    Figure(N + "answered_calls", "counter", ("call", "outcome"), "Calls of peers: ok, or the reason of refusal.",
           _served),
    Figure(N + "refused_messages", "counter", ("reason",), "Messages of peers that were refused.",
           _by(lambda n: n.host.refused)),
    Figure(N + "kept_out_models", "counter", ("reason",), "Models of peers that the guard refused.",
           _by(lambda n: n.guard.refused)),
    Figure(N + "quarantined_peers", "gauge", (), "Peers that are quarantined.",
           lambda n: _one(len(n.guard.quarantined(time.monotonic())))),
    Figure(N + "dp_epsilon", "gauge", (), "Epsilon spent by DP-SGD; absent: off.",
           lambda n: _one(n.privacy.account.epsilon if n.settings.privacy.dp else None)),
    Figure(N + "oracle_epsilon", "gauge", ("peer",), "Epsilon of all answers to a peer, while it is a member.",
           _oracle),
    Figure(N + "waiting_bytes", "gauge", (), "Bytes of models that wait or are being received.",
           lambda n: _one(n.mailbox.size)),
    Figure(N + "failed_calls", "counter", ("call", "reason"), "Calls to peers that failed.", _failed),
    Figure(N + "members", "gauge", ("state",), "Known nodes of all runs, including this one.", _members),
    Figure(N + "membership_actions", "counter", ("action",), "Packets, calls and changes of the membership.",
           _by(lambda n: n.membership.counters)),
    Figure(N + "membership_health", "gauge", (),
           "SWIM health score: 0 is healthy; if higher, this process is slow.",
           lambda n: _one(n.membership.health)),
    Figure(N + "relay_sites", "gauge", (), "Nodes that this relay connects callers to; absent: no relay.",
           _relay("sites")),
    Figure(N + "relay_connections", "gauge", (), "Connections through this relay.", _relay("connections")),
    Figure(N + "relay_opened_connections", "counter", ("site",), "Connections through this relay, by site.",
           _relay("opened")),
    Figure(N + "relay_bytes", "counter", ("site",), "Bytes through this relay, to and from a site.",
           _relay("bytes")),
    Figure(N + "relay_refusals", "counter", ("reason",), "Connections and calls that this relay refused.",
           _relay("refused")),
    Figure(N + "task_reloads", "counter", ("outcome",), "Calls of the task for new data: reloaded, failed.",
           _reloads),
    Figure(N + "training_samples", "gauge", (), "Samples that the node trains on.",
           lambda n: _one(n.recorder.learner.samples if n.recorder else None)),
    Figure(N + "checkpoints", "counter", ("outcome",), "Checkpoints written and failed.", _checkpoints),
    Figure(N + "checkpoint_age_seconds", "gauge", (), "Time since the last checkpoint; absent: none.",
           _checkpoint_age),
    Figure(N + "certificate_expiry_timestamp_seconds", "gauge", (),
           "Expiry of this node's certificate; absent: no TLS.", _expiry),
    Figure(N + "events", "counter", ("kind",), "Events by kind.", _by(lambda n: n.node_observer.hub.counts)),
    Figure(N + "watchers", "gauge", (), "Watchers of the events.", lambda n: _one(n.node_observer.hub.watchers)),
)  # fmt: skip
