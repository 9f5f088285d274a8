"""Seeds made from words: the same on every machine, different for every purpose. Pure."""

from __future__ import annotations

from hashlib import sha256


def seed_from(*parts: object) -> int:
    """A seed that depends on all the parts and is the same on every machine."""
    return int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:7])
