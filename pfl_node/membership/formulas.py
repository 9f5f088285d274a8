"""The formulas of SWIM and Lifeguard as pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil, log, log10

SUSPICION_STRETCH = 6  # Lifeguard's beta: ratio of the longest to the shortest suspicion timeout


def suspicion_bounds(n: int, multiplier: float, interval: float) -> tuple[float, float]:
    """The shortest and the longest suspicion timeout in a swarm of n members."""
    shortest = multiplier * max(1.0, log10(max(n, 1))) * interval
    return shortest, SUSPICION_STRETCH * shortest


def confirmations_wanted(n: int, multiplier: float) -> int:
    """The number of further accusers that reduce the timeout to its minimum; 0 if there are too few members."""
    wanted = max(int(multiplier) - 2, 0)
    return wanted if n - 2 >= wanted else 0


def suspicion_timeout(confirmed: int, wanted: int, shortest: float, longest: float) -> float:
    """The suspicion timeout, which decreases with the logarithm of the number of independent confirmations."""
    if wanted <= 0:
        return shortest
    share = log(min(confirmed, wanted) + 1) / log(wanted + 1)
    return longest - share * (longest - shortest)


def retransmissions(n: int, multiplier: int) -> int:
    """How often each member retransmits a rumour so that all n members receive it with high probability."""
    return multiplier * ceil(log10(n + 1))


def fingers(me: str, ids: Sequence[str], k: int) -> list[str]:
    """k ids spread over a ring of hashes as in Chord: every member is a finger of another one, and a newcomer
    changes few fingers."""
    if len(ids) <= k:
        return list(ids)
    ring = sorted((_position(i), i) for i in ids)
    here = _position(me)
    chosen: dict[str, None] = {}
    for distance in (0, *(1 << (63 - j) for j in range(k - 1))):
        at = bisect_left(ring, ((here + distance) % (1 << 64), ""))
        chosen[ring[at % len(ring)][1]] = None
    start = bisect_left(ring, (here, ""))
    for step in range(len(ring)):
        if len(chosen) >= k:
            break
        chosen[ring[(start + step) % len(ring)][1]] = None
    return list(chosen)


@lru_cache(maxsize=8192)
def _position(member: str) -> int:
    return int.from_bytes(blake2b(member.encode(), digest_size=8).digest())
