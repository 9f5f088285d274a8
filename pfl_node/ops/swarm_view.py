"""One node's view of the swarm: it queries the other nodes, but only while a watcher is connected.

Answers of peers are validated. Ten watchers cost as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pfl_node.errors import PeerError
from pfl_node.membership.member import Member
from pfl_node.ops.clusters import Clusters, find_clusters
from pfl_node.ops.history import HistoryPoint, thinned
from pfl_node.ops.peer_status import PeerStatus, peer_status, points_of
from pfl_node.ops.status import status_of
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode

ASKED = 256  # maximum number of nodes that are queried
AT_ONCE = 8
PATIENCE = 4.0  # seconds per answer
LONGEST = 6.0  # seconds for all answers
SHOWN = 512  # members in the answer, including those that are gone


class SwarmView:
    def __init__(self, node: ObservedNode, *, clock: Any = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._every = node.settings.http.every
        self._looked: float | None = None
        self._looking = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._statuses: dict[str, PeerStatus] = {}
        self._heard: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._points: dict[str, list[HistoryPoint]] = {}
        self._view: dict[str, Any] = {}

    async def look(self) -> dict[str, Any]:
        """The swarm as JSON values, at most as old as the settings allow."""
        async with self._looking:
            now = self._clock()
            if self._looked is None or now - self._looked >= self._every * 0.9:
                await self._ask_all()
                self._looked = now
                self._view = self._compose()
        return self._view

    async def history(self) -> dict[str, Any]:
        """The curves of all nodes that answered."""
        await self.look()
        mine = {str(self._node.id): self._node.node_observer.history.since()}
        return {"nodes": {id: [p.plain() for p in points] for id, points in {**self._points, **mine}.items()}}

    async def _ask_all(self) -> None:
        self._forget(except_for={m.id for m in self._members()})
        others = in_turn(self._node.peers(), self._heard)[:ASKED]
        asking = [asyncio.create_task(self._ask(peer, address)) for peer, address in others]
        if asking:
            _, late = await asyncio.wait(asking, timeout=LONGEST)
            for task in late:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, peer: PeerId, address: str) -> None:
        known = self._points.setdefault(peer, [])
        async with self._slots:
            try:
                after = known[-1].round if known else -1
                status, history = await self._node.client.look(peer, address, after=after, timeout=PATIENCE)
            except PeerError as error:
                self._errors[peer] = error.text
                return
        self._errors.pop(peer, None)
        self._heard[peer] = self._clock()
        status_seen = peer_status(status)
        if known and status_seen.round < known[-1].round:  # it restarted from a checkpoint
            known.clear()
        self._points[peer] = thinned([*known, *points_of(history, after)])
        self._statuses[peer] = status_seen

    def _forget(self, except_for: set[str]) -> None:
        for table in (self._statuses, self._heard, self._errors, self._points):
            for peer in [p for p in table if p not in except_for]:
                del table[peer]

    def _members(self) -> list[Member]:
        """Nodes of this run and bootstraps, present ones first."""
        run = self._node.settings.run
        known = [m for m in self._node.membership.members() if m.role != "node" or m.run == run]
        return sorted(known, key=lambda m: (not m.state.present, m.name, m.id))[:SHOWN]

    def _compose(self) -> dict[str, Any]:
        node, members = self._node, self._members()
        statuses = {**self._statuses, str(node.id): peer_status(status_of(node))}
        ids = {m.id for m in members if m.role == "node"}
        lately = _among(ids, {id: s.learns_with for id, s in statuses.items()})
        heads = {id: s.head for id, s in statuses.items() if s.head is not None and id in ids}
        present = {m.id for m in members if m.state.present and m.role == "node"}
        found = find_clusters({id: row for id, row in lately.items() if id in present})
        return {
            "time": round(time.time(), 3),
            "me": node.id,
            "run": node.settings.run,
            "every": self._every,
            "nodes": [self._row(m, statuses.get(m.id)) for m in members],
            "ties": {
                "lately": lately,
                "total": _among(ids, {id: s.learned_from for id, s in statuses.items()}),
            },
            "clusters": _grouped(heads) or _by_ties(found),
        }

    def _row(self, member: Member, status_seen: PeerStatus | None) -> dict[str, Any]:
        mine = member.id == self._node.id
        heard = self._heard.get(member.id)
        return {
            **(status_seen.plain() if status_seen else {}),
            "id": member.id,
            "name": member.name,
            "address": self._node.address if mine else member.address,
            "role": member.role,
            "state": str(member.state),
            "reachability": str(member.reachability),
            "round": max(member.round, status_seen.round) if status_seen else member.round,
            "me": mine,
            "heard": 0.0 if mine else None if heard is None else round(self._clock() - heard, 1),
            "error": self._errors.get(member.id),
        }


def in_turn(others: Mapping[PeerId, str], heard: Mapping[str, float]) -> list[tuple[PeerId, str]]:
    """Least recently heard first: a busy machine may leave no time for all."""
    return sorted(others.items(), key=lambda one: heard.get(one[0], float("-inf")))


def _among(ids: set[str], rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The nodes' reports about each other; entries about unknown ids are dropped."""
    return {
        id: {peer: w for peer, w in row.items() if peer in ids and peer != id}
        for id, row in rows.items()
        if id in ids
    }


def _by_ties(found: Clusters) -> dict[str, Any]:
    return {"by": "ties", "groups": list(map(list, found.clear)), "separation": round(found.separation, 3)}


def _grouped(heads: Mapping[str, int]) -> dict[str, Any] | None:
    """Nodes that chose the same head learn together."""
    numbers = sorted(set(heads.values()))
    if not numbers:
        return None
    groups = [sorted(id for id, head in heads.items() if head == number) for number in numbers]
    return {"by": "heads", "groups": groups, "separation": None}
