"""Seeds made from words: the same on every machine, different for every purpose. Pure."""

from __future__ import annotations

from hashlib import sha256

from pfl_node.settings import Settings
from pfl_node.types import PeerId


def seed_from(*parts: object) -> int:
    """A seed that depends on all the parts and is the same on every machine."""
    return int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:7])


def fresh_seed(settings: Settings, me: PeerId, seed: int, *, common: bool = False) -> int:
    """Common initialisation: the same on every node of the run; independent: my own."""
    own = () if common or settings.train.init == "common" else (me,)
    return seed_from(settings.seed, "fresh", *own, seed)
