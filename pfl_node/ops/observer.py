"""The observable state of one node: events, history, and the peers it learns with; also its page, if it serves
one.

Connects the parts of a node to the hub. Page, metrics and command line only read.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from pfl_node import __version__
from pfl_node.membership.member import Reachability
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, Suspected
from pfl_node.membership.member_events import MemberEvent as News
from pfl_node.ops.events import Hub, NodeEvent
from pfl_node.ops.exchange import Exchange
from pfl_node.ops.history import History
from pfl_node.ops.node_health import why_nothing_arrives
from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.settings.redact import for_others
from pfl_node.store.checkpoints import Checkpoints

if TYPE_CHECKING:
    from pfl_node.membership.reachability import DialBackResult
    from pfl_node.node.ports import JournalWriter, LearnerFacts
    from pfl_node.ops.observed_node import ObservedNode
    from pfl_node.ops.web.web_server import Page
    from pfl_node.policies.base import Policy

log = structlog.get_logger(__name__)

NEWS: dict[type[News], str] = {
    Joined: "joined",
    Suspected: "suspected",
    Changed: "changed",
    Died: "died",
    Left: "left",
}
LOG_LEVELS = {"joined": "info", "suspected": "debug", "died": "warning", "left": "info"}
LOSSES = frozenset({"loss", "mine"})  # figures of the guard that are only for the journal
DECAY = 0.9  # per round; an eighth is left after twenty rounds
MIN_WEIGHT = 0.02
PEERS = 1024  # peers whose total is kept; the oldest are dropped first
REFUSALS_EVERY = 30.0  # seconds between log lines about one reason


class NodeObserver:
    def __init__(self, node: ObservedNode) -> None:
        self.hub = Hub()
        self.history = History()
        self.ties = Affinities()
        self.exchange = Exchange()
        self.rounds = 0  # rounds done by this process
        self.round_seconds = 0.0  # sum of the times from the end of a round to the end of the next
        self.checkpoint_at: float | None = None  # seconds since 1970
        self.page: Page | None = None
        self._node = node
        self._round_ended: float | None = None
        self._unreachable = False  # the last result of the reachability check
        self._failures = 0  # calls that had failed at the end of the last round
        self._refusals: dict[str, tuple[float, int]] = {}  # by reason: time of the last line, and refusals since
        self.tell = self.hub.tell
        self.warn = self.hub.warn
        self.hub.listen(self._hear)

    async def open(self) -> None:
        """Called when the node's port is open; opens the port of the page."""
        node = self._node
        self.history.read(node.home.journal)
        for newest in list(Checkpoints(node.home.checkpoint).files().values())[:1]:
            self.checkpoint_at = newest.stat().st_mtime
        self.tell(
            "opened",
            {
                "node": node.id,
                "name": node.name,
                "address": node.address,
                "data_dir": str(node.home.path.absolute()),
                "pid": os.getpid(),
                "version": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
                "settings": for_others(node.settings),
            },
        )
        if node.settings.http.listen is not None:
            from pfl_node.ops.web.web_server import Page

            self.page = Page(node)
            await self.page.open()

    async def close(self) -> None:
        self.hub.close()
        if self.page:
            await self.page.close()

    def begins(self, policy: Policy, learner: LearnerFacts, journal: JournalWriter) -> None:
        """The node has joined and its policy begins. The journal also records the settings."""
        node = self._node
        facts = {"node": node.id, "round": policy.round, "samples": learner.samples, "cluster": learner.cluster}
        self.tell("started", facts)
        journal.write("started", {**facts, "settings": for_others(node.settings)})

    def membership(self, event: News) -> None:
        """The hub gets every event, the log those that an operator looks for later."""
        member = event.member
        if isinstance(event, Clashed):
            self.hub.warn("another node uses this node's id", address=member.address, id=member.id)
        kind = NEWS.get(type(event))
        if kind is None or member.id == self._node.id:
            return
        facts = {"peer": member.id, "name": member.name, "address": member.address, "role": member.role}
        self.tell(kind, {**facts, "state": str(member.state), "round": member.round})
        if kind in LOG_LEVELS and member.role == "node":
            getattr(log, LOG_LEVELS[kind])(kind, peer=member.name, id=member.id, address=member.address)

    def reachability(self, state: Reachability, results: Sequence[DialBackResult]) -> None:
        """Others have dialled this node back, and the result has changed."""
        asked = {result.name: result.reason or "reached" for result in results}
        self.tell("reachability", {"state": str(state), "address": self._node.address, "asked": asked})
        if state is Reachability.UNREACHABLE:
            self.hub.warn(str(results[0]))
        level = "info" if self._unreachable else "debug"  # log it only after a problem
        self._unreachable = state is Reachability.UNREACHABLE
        if not self._unreachable:
            getattr(log, level)("others can connect to this node", address=self._node.address)

    def relayed(self, relays: Sequence[str]) -> None:
        """Others now connect to this node through relays."""
        facts = {"state": str(Reachability.RELAYED), "address": self._node.address, "asked": {}}
        self.tell("reachability", facts | {"relays": list(relays)})
        log.info("others connect to this node through relays", relays=list(relays))

    def guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """Actions of the guard also go to the journal. Peers may watch the events, so the losses of their models
        on my data are only in the journal."""
        if self._node.recorder:
            self._node.recorder.write(event, data)
        self.tell(event, {name: value for name, value in data.items() if name not in LOSSES})
        if event == "quarantined":
            log.warning("a peer is quarantined", **data)

    def _hear(self, event: NodeEvent) -> None:
        match event.kind:
            case "started":
                self._round_ended = time.monotonic()
                self.exchange.begin(self._round_ended)
            case "round":
                self._round(event)
            case "checkpoint":
                self.checkpoint_at = event.time
            case "refused":
                self._refused(event.data)

    def _round(self, event: NodeEvent) -> None:
        now = time.monotonic()
        self.rounds += 1
        if self._round_ended is not None:
            self.round_seconds += now - self._round_ended
        self._round_ended = now
        moved = TransferTotals.of(self._node)
        self.history.add({**event.data, "bytes_sent": moved.sent, "bytes_received": moved.received}, event.time)
        self.ties.round(event.data, {str(peer): n for peer, n in moved.models_received.items()})
        self._exchanged(moved, now)

    def _exchanged(self, moved: TransferTotals, now: float) -> None:
        """Warn once if no model arrives for several rounds, whatever the cause."""
        node, exchange, before = self._node, self.exchange, self.exchange.receives_nothing
        expected = not node.plan.policy.solitary and bool(node.membership.alive(run=node.settings.run))
        failed = node.recorder.failures.total() if node.recorder else 0
        exchange.round(
            received=moved.models_received.total(),
            sent=moved.models_sent.total(),
            failed=failed > self._failures,
            peers=expected,
            now=now,
        )
        self._failures = failed
        if exchange.receives_nothing and not before:
            seconds = now - exchange.received.since
            what = f"no model has arrived for {exchange.received.quiet} rounds ({seconds:.0f} s)"
            self.hub.warn(f"{what}: {why_nothing_arrives(node)}")
        elif before and not exchange.receives_nothing:
            log.info("models arrive again")

    def _refused(self, data: Any) -> None:
        """Log each reason at most once per interval, because peers control the number of refusals."""
        reason, now = str(data["reason"]), time.monotonic()
        logged, since = self._refusals.get(reason, (-REFUSALS_EVERY, 0))
        if now - logged < REFUSALS_EVERY:
            self._refusals[reason] = (logged, since + 1)
            return
        self._refusals[reason] = (now, 0)
        log.info("refused", reason=reason, call=data["call"], peer=data["peer"], more_since_the_last_line=since)


class Affinities:
    """The peers a node learns with: how often each peer's model was merged, recently and in total."""

    def __init__(self) -> None:
        self.lately: dict[str, float] = {}
        self.total: dict[str, int] = {}
        self._taken: Counter[str] = Counter()

    def round(self, row: Mapping[str, Any], taken: Mapping[str, int]) -> None:
        """After a round: the peers that the policy reports as merged, else those whose models were received
        (`taken`: totals by peer)."""
        received = Counter(taken)
        merged = row.get("from")
        news = _named(merged) if isinstance(merged, list | tuple) else received - self._taken
        self._taken = received
        decayed = {peer: weight * DECAY for peer, weight in self.lately.items()}
        for peer, n in news.items():
            decayed[peer] = decayed.get(peer, 0.0) + min(n, 1)
            self.total[peer] = self.total.pop(peer, 0) + n
        self.lately = {peer: weight for peer, weight in decayed.items() if weight >= MIN_WEIGHT}
        while len(self.total) > PEERS:
            del self.total[next(iter(self.total))]


def _named(merged: Iterable[Any]) -> Counter[str]:
    return Counter(peer for peer in merged if isinstance(peer, str))
