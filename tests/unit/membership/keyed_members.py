"""Members with real P-256 keys, for a state machine without sockets or files."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from pfl_node.errors import Reason, Refused
from pfl_node.membership.signatures import Signed
from pfl_node.security.certificate import Certificate, read_pem
from pfl_node.security.credentials import PINNED_ISSUER, Credentials
from pfl_node.security.identity_keys import IdentityKeys
from pfl_node.security.x509_builder import (
    Key,
    key_id,
    key_pem,
    make_authority,
    make_certificate,
    make_own_certificate,
    new_key,
)
from pfl_node.types import PeerId

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Peers:
    """Which ids a node accepts, as `Trust` decides it, without files."""

    credentials: Credentials
    revoked: set[str] = field(default_factory=set)

    @property
    def me(self) -> PeerId:
        return self.credentials.id

    def permit(self, peer: PeerId) -> None:
        if peer in self.revoked:
            raise Refused(Reason.REVOKED, f"{peer} is revoked")

    def check(self, certificate: Certificate) -> None:
        if certificate.alias or certificate.expired():
            raise Refused(Reason.EXPIRED, "not valid")
        self.permit(certificate.id)


@cache
def authority(name: str = "the CA") -> tuple[Key, bytes]:
    key = new_key()
    return key, make_authority(key, name, 10)


def credentials(key: Key, *, ca: str | None = "the CA", days: float = 1.0) -> Credentials:
    """With `ca` None, ids are pinned."""
    if ca is None:
        pem, roots = make_own_certificate(key), PINNED_ISSUER
    else:
        issuer, roots = authority(ca)
        pem = make_certificate(key.public_key(), roots, issuer, days=days)
    return Credentials(key_pem(key), pem, roots, read_pem(pem), CONTEXT, CONTEXT)


class Keyed:
    """The keys of a swarm: `ids[n]` is the id of its n-th member."""

    def __init__(self, count: int, *, ca: str | None = "the CA", clock: Callable[[], float] = lambda: 1e9) -> None:
        self._clock = clock
        keys = [new_key() for _ in range(count)]
        self.ids = [str(key_id(key)) for key in keys]
        self.peers = {str(key_id(key)): Peers(credentials(key, ca=ca)) for key in keys}

    def sign(self, member: str) -> Signed:
        """What the member with this id signs and verifies with; it knows no other key yet."""
        return Signed(IdentityKeys(self.peers[member]), self._clock)

    def knowing_all(self, member: str) -> Signed:
        mine = self.sign(member)
        for other in self.ids:
            mine.keys.add(self.credential(other))
        return mine

    def credential(self, member: str) -> bytes:
        found = self.sign(member).keys.credential(member)
        assert found is not None
        return found
