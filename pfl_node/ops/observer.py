"""What can be seen of one node: its events, its history, whom it learns with; and the page, if it serves one.

Affinities the parts of a node to the hub. What shows them (page, metrics, command line) only reads.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from pfl_node import __version__
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, Suspected
from pfl_node.membership.member_events import MemberEvent as News
from pfl_node.ops.affinity import Affinities
from pfl_node.ops.events import Hub, NodeEvent
from pfl_node.ops.history import History
from pfl_node.ops.status import Moved
from pfl_node.settings.redact import without_secrets
from pfl_node.store.checkpoints import Checkpoints

if TYPE_CHECKING:
    from pfl_node.daemon.assemble import DaemonNode
    from pfl_node.node.ports import Journal, LearnerFacts
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
LOUD = {"joined": "info", "suspected": "info", "died": "warning", "left": "info"}  # on the log
LOSSES = frozenset({"loss", "mine"})  # what the guard says of a model besides
REFUSALS_EVERY = 30.0  # seconds between two lines on the log about one reason


class NodeObserver:
    """One for each node."""

    def __init__(self, node: DaemonNode) -> None:
        self.hub = Hub()
        self.history = History()
        self.ties = Affinities()
        self.rounds = 0  # done in this life
        self.round_seconds = 0.0  # from the end of one to the end of the next
        self.checkpoint_at: float | None = None  # seconds since 1970
        self.page: Page | None = None
        self._node = node
        self._round_ended: float | None = None
        self._refusals: dict[str, tuple[float, int]] = {}  # by reason: told when, and how many since
        self.tell = self.hub.tell
        self.warn = self.hub.warn
        self.hub.listen(self._hear)

    async def open(self) -> None:
        """The node's port is open; the page's opens now."""
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
                "settings": without_secrets(node.settings),
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

    def begins(self, policy: Policy, learner: LearnerFacts, journal: Journal) -> None:
        """The node has joined and its policy begins. The journal also keeps what it was run with."""
        node = self._node
        facts = {"node": node.id, "round": policy.round, "samples": learner.samples, "cluster": learner.cluster}
        self.tell("started", facts)
        journal.write("started", {**facts, "settings": without_secrets(node.settings)})

    def membership(self, event: News) -> None:
        """The log has what an operator looks for later; the hub has everything."""
        member = event.member
        if isinstance(event, Clashed):
            self.hub.warn("another node uses this node's id", address=member.address, id=member.id)
        kind = NEWS.get(type(event))
        if kind is None or member.id == self._node.id:
            return
        facts = {"peer": member.id, "name": member.name, "address": member.address, "role": member.role}
        self.tell(kind, {**facts, "state": str(member.state), "round": member.round})
        if kind in LOUD and member.role == "node":
            getattr(log, LOUD[kind])(kind, peer=member.name, id=member.id, address=member.address)

    def guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """What the node's guard did is in the journal, too. Peers may watch the events: the losses of their models
        on my data, which the gate goes by, are for the journal only."""
        if self._node.recorder:
            self._node.recorder.write(event, data)
        self.tell(event, {name: value for name, value in data.items() if name not in LOSSES})
        if event == "quarantined":
            log.warning("a peer is in quarantine", **data)

    def _hear(self, event: NodeEvent) -> None:
        match event.kind:
            case "started":
                self._round_ended = time.monotonic()
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
        moved = Moved.of(self._node)
        self.history.add({**event.data, "bytes_sent": moved.sent, "bytes_received": moved.received}, event.time)
        self.ties.round(event.data, {str(peer): n for peer, n in moved.models_received.items()})

    def _refused(self, data: Any) -> None:
        """A line on the log for every reason, but not for every message: peers decide how many there are."""
        reason, now = str(data["reason"]), time.monotonic()
        told, since = self._refusals.get(reason, (-REFUSALS_EVERY, 0))
        if now - told < REFUSALS_EVERY:
            self._refusals[reason] = (told, since + 1)
            return
        self._refusals[reason] = (now, 0)
        log.info("refused", reason=reason, call=data["call"], peer=data["peer"], more_since_the_last_line=since)
