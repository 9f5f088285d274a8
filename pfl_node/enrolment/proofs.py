"""What the secret of a token proves, and to whom.

The bootstrap and the operator each have a key that is derived from the secret; neither has the secret. A request
has a tag for each: the bootstrap's one keeps strangers out, the operator's one shows that the bootstrap did not
exchange the request. The operator's answer has a tag as well. The secret is random and long, so nothing can be
guessed offline.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

ID_BYTES = 8
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """`id` names the invitation; it is no secret."""

    id: str
    bootstrap: bytes
    operator: bytes

    @classmethod
    def of(cls, secret: bytes) -> TokenKeys:
        return cls(
            _derive(secret, "id")[:ID_BYTES].hex(), _derive(secret, "bootstrap"), _derive(secret, "operator")
        )


def request_tag(key: bytes, request: str) -> str:
    """By the site, for the operator."""
    return _tag(key, "request", request)


def caller_tag(key: bytes, server: bytes, request: str, operator_tag: str) -> str:
    """By the site, for the bootstrap; `server` is the digest of the certificate that it presented, so that the tag
    is of no use to another member that answers in its place."""
    return _tag(key, "caller", server.hex(), request, operator_tag)


def answer_tag(key: bytes, certificate: str, revoked: str) -> str:
    """By the operator, for the site."""
    return _tag(key, "answer", certificate, revoked)


def equal(one: str, other: str) -> bool:
    """In a time that does not depend on the contents."""
    return hmac.compare_digest(one.encode(), other.encode())


def short_id(id: str) -> str:
    """The first half of an id, as people compare it: four groups of four digits."""
    return "-".join(id[at : at + 4] for at in range(0, 16, 4))


def _derive(secret: bytes, purpose: str) -> bytes:
    return hmac.digest(secret, f"pfl join 1: {purpose}".encode(), hashlib.sha256)


def _tag(key: bytes, *parts: str) -> str:
    data = b"".join(len(part.encode()).to_bytes(4) + part.encode() for part in parts)
    return hmac.digest(key, data, hashlib.sha256).hex()
