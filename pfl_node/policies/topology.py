"""Communication graphs and client sampling as pure functions of (seed, round, members), computed by every node
alone.

Random choices depend on ids, not on positions: a member more or less changes little, so that nodes with slightly
different views still agree on almost all edges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from pfl_node.seeds import seed_from
from pfl_node.types import PeerId

Graph = dict[PeerId, tuple[PeerId, ...]]
Edge = tuple[PeerId, PeerId]
Hashes = npt.NDArray[np.uint64]
BITS = 64


def neighbours(me: PeerId, peers: Iterable[PeerId], *, degree: int, seed: int, round: int) -> tuple[PeerId, ...]:
    """My neighbours in the round's random regular graph of everybody."""
    return regular(_members(me, peers), degree, seed, round)[me]


def recipients(me: PeerId, peers: Iterable[PeerId], *, degree: int, seed: int, round: int) -> tuple[PeerId, ...]:
    """The peers that I choose at random for this round; all nodes can compute them."""
    return choices(_members(me, peers), degree, seed, round)[0][me]


def senders(me: PeerId, peers: Iterable[PeerId], *, degree: int, seed: int, round: int) -> tuple[PeerId, ...]:
    """The peers that choose me as a recipient."""
    return choices(_members(me, peers), degree, seed, round)[1][me]


def _members(me: PeerId, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """All members, sorted. `Peers` answers with a sorted tuple; sorting thousands again would cost more than the
    rest of a round."""
    if not isinstance(peers, tuple):
        return tuple(sorted({me, *peers}))
    place = bisect_left(peers, me)
    return peers if peers[place : place + 1] == (me,) else (*peers[:place], me, *peers[place:])


def exponential(
    me: PeerId, peers: Iterable[PeerId], *, degree: int, round: int
) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...]]:
    """My recipients and my senders in the directed exponential graph: the nodes 1, 2, 4, ... places ahead of me in
    the sorted list and as far behind, `degree` of these distances in each round, in turn."""
    _check(degree)
    members = _members(me, peers)
    n, i = len(members), members.index(me)
    hops = [1 << k for k in range((n - 1).bit_length())]
    now = {hops[(round * degree + d) % len(hops)] for d in range(degree)} if hops else set[int]()
    return tuple(members[(i + h) % n] for h in sorted(now)), tuple(members[(i - h) % n] for h in sorted(now))


@lru_cache(maxsize=64)
def regular(members: tuple[PeerId, ...], degree: int, seed: int, round: int) -> Graph:
    """A connected random graph in which every node has `degree` neighbours.

    All nodes are on a ring in random order and connected to the degree / 2 nearest on either side, plus random
    pairs if the degree is odd. With an odd number of members, one node then has a neighbour less; with too few
    members, the graph is complete.

    If a member leaves, only its own edges change: each of its neighbours gets one of the others instead. With an
    odd degree, the pairs of some dozen members change too, independent of the size of the swarm.
    """
    _check(degree)
    n, half = len(members), degree // 2
    if n <= degree + 1:
        return _graph(members, [(a, b) for a in members for b in members if a < b])
    ring = _ring(members, "graph", seed, round)
    order = [m for _, m in ring]
    edges = [(order[i], order[(i + d) % n]) for i in range(n) for d in range(1, half + 1)]
    return _graph(members, edges + (_pairs(ring, half + 1)[0] if degree % 2 else []))


def _pairs(
    ring: Sequence[tuple[int, PeerId]], far: int, low: int = 0, bits: int = BITS
) -> tuple[list[Edge], PeerId | None]:
    """Pair each node with one at least `far` positions away; also returns the node that is left over if the number
    is odd.

    The ring is halved by hash value, not by count, while both halves can be paired separately; so a member more or
    less only changes the pairs of its own part and the left-over nodes around it. The left-over node is in the
    middle of its part, far enough from all nodes of other parts.
    """
    cut = bisect_left(ring, (low + (1 << bits >> 1),))
    if bits and min(cut, len(ring) - cut) >= 2 * far:
        left, a = _pairs(ring[:cut], far, low, bits - 1)
        right, b = _pairs(ring[cut:], far, low + (1 << bits >> 1), bits - 1)
        return (left + right + [(a, b)], None) if a and b else (left + right, a or b)
    half = len(ring) // 2
    pairs = [(a, b) for (_, a), (_, b) in zip(ring[:half], ring[-half:], strict=True)] if half else []
    return pairs, ring[half][1] if len(ring) % 2 else None


@lru_cache(maxsize=64)
def rings(members: tuple[PeerId, ...], degree: int, seed: int) -> Graph:
    """A connected random regular graph for all rounds.

    `regular` is a ring with short chords. It mixes well if it is new in every round, but a permanent graph needs
    distant neighbours. This one consists of rings in different orders, plus random pairs if the degree is odd; a
    duplicate edge is crossed with a later one of its ring.

    If a member leaves, only edges next to it in one of the rings change, and crossed ones.
    """
    _check(degree)
    if len(members) <= degree + 1:
        return regular(members, degree, seed, 0)
    edges: set[Edge] = set()
    for r in range(degree // 2):
        order = [m for _, m in _ring(members, "rings", seed, r)]
        if not _add_edges(edges, list(zip(order, [*order[1:], order[0]], strict=True))):
            return regular(members, degree, seed, 0)
    if degree % 2 and not _add_edges(edges, _pairs(_ring(members, "pairs", seed, 0), 1)[0]):
        return regular(members, degree, seed, 0)
    return _graph(members, edges)


def _add_edges(edges: set[Edge], more: list[Edge]) -> bool:
    """Add `more` edges to `edges`. A duplicate is crossed with another new edge, so that every node still gets as
    many new neighbours. False: impossible."""

    def free(a: PeerId, b: PeerId) -> bool:
        return a != b and _edge(a, b) not in edges and _edge(a, b) not in own

    own = {_edge(a, b) for a, b in more}
    for i, (a, b) in enumerate(more):
        if _edge(a, b) not in edges:
            continue
        for j in (*range(i + 1, len(more)), *range(i)):
            c, d = more[j]
            if free(a, c) and free(b, d):
                own -= {_edge(a, b), _edge(c, d)}
                more[i], more[j] = (a, c), (b, d)
                own |= {_edge(a, c), _edge(b, d)}
                break
        else:
            return False
    edges |= own
    return True


@lru_cache(maxsize=64)
def choices(members: tuple[PeerId, ...], degree: int, seed: int, round: int) -> tuple[Graph, Graph]:
    """The recipients of every node, `degree` random others, and the senders of every node.

    If a member leaves, only the nodes that had chosen it choose one other.
    """
    _check(degree)
    if len(members) <= degree + 1:
        return (everybody := regular(members, degree, seed, round)), everybody
    to: Graph = {}
    of: dict[PeerId, list[PeerId]] = {m: [] for m in members}
    theirs = np.array([_hash("of", seed, round, m) for m in members], np.uint64)
    for i, m in enumerate(members):
        hashes = _mixed(theirs + np.uint64(_hash("to", seed, round, m)))
        hashes[i] = ~np.uint64(0)  # no node chooses itself
        lowest = np.argpartition(hashes, degree)[:degree].tolist()
        to[m] = tuple(members[j] for j in sorted(lowest))
        for other in to[m]:
            of[other].append(m)
    return to, {m: tuple(found) for m, found in of.items()}


def _mixed(numbers: Hashes) -> Hashes:
    """The finaliser of splitmix64: different numbers become unrelated in every bit."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def sample(members: Iterable[PeerId], *, fraction: float, seed: int, round: int) -> tuple[PeerId, ...]:
    """A `fraction` of the members, at least one, sorted by id.

    The members with the lowest hash values are selected. A member more or less changes little: nodes that do not
    know of it yet agree with the others on almost all selected members.
    """
    return _lowest(tuple(sorted(set(members))), fraction, seed, round)


@lru_cache(maxsize=64)
def _lowest(members: tuple[PeerId, ...], fraction: float, seed: int, turn: int) -> tuple[PeerId, ...]:
    wanted = max(round(fraction * len(members)), 1)
    return tuple(sorted(sorted(members, key=lambda m: seed_from(seed, "sample", turn, m))[:wanted]))


def _ring(members: Iterable[PeerId], *purpose: object) -> list[tuple[int, PeerId]]:
    return sorted((_hash(*purpose, m), m) for m in members)


def _hash(*parts: object) -> int:
    """A hash value that is the same on every machine."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=BITS // 8).digest())


def _edge(a: PeerId, b: PeerId) -> Edge:
    return (a, b) if a < b else (b, a)


def _graph(members: Iterable[PeerId], edges: Iterable[Edge]) -> Graph:
    near: dict[PeerId, list[PeerId]] = {m: [] for m in members}
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    return {m: tuple(sorted(found)) for m, found in near.items()}


def _check(degree: int) -> None:
    if degree < 0:
        raise ValueError(f"the degree is {degree}; it must be zero or more")
