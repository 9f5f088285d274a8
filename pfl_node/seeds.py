"""Seeds derived from words: the same on every machine, different for every purpose. Pure."""

from __future__ import annotations

from hashlib import sha256


def seed_from(*parts: object) -> int:
    return int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:7])
