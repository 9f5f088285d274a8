"""Who takes part in a round, as a pure function of (seed, round, members): every node computes it alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pfl_node.seeds import seed_from
from pfl_node.types import PeerId


def sample(members: Iterable[PeerId], *, fraction: float, seed: int, round: int) -> tuple[PeerId, ...]:
    """That fraction of the members, at least one of them, sorted by id.

    Everybody draws a lot with the own id and the lowest are in. So a member that comes or goes changes little:
    nodes that do not know of it yet agree with the others on nearly everybody.
    """
    return _lowest(tuple(sorted(set(members))), fraction, seed, round)


@lru_cache(maxsize=64)
def _lowest(members: tuple[PeerId, ...], fraction: float, seed: int, turn: int) -> tuple[PeerId, ...]:
    wanted = max(round(fraction * len(members)), 1)
    return tuple(sorted(sorted(members, key=lambda m: seed_from(seed, "sample", turn, m))[:wanted]))
