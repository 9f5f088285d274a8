"""Secrets that two nodes share: X25519 with a key that is new at each start. The public key is part of the node's
membership record, which with TLS its identity key signs. Imports `cryptography`."""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pfl_node.types import PeerId

CONTEXT = b"pfl-node pair noise 2"
SECRET_BYTES = 32


class KeyAgreement:
    """The private key never leaves this object and is not stored: a restarted node shares other secrets, so
    nothing that was derived from the old ones is used again."""

    def __init__(self, me: PeerId, public_of: Callable[[PeerId], bytes | None]) -> None:
        self._me = me
        self._key = X25519PrivateKey.generate()
        self._public_of = public_of
        self._agreed: dict[PeerId, tuple[bytes, bytes]] = {}  # the peer's key, the secret
        self.public = self._key.public_key().public_bytes_raw()

    def secret(self, peer: PeerId) -> bytes | None:
        """None: the peer has stated no key, or an invalid one."""
        theirs = self._public_of(peer)
        if not theirs:
            return None
        if peer not in self._agreed or self._agreed[peer][0] != theirs:
            try:
                agreed = self._key.exchange(X25519PublicKey.from_public_bytes(theirs))
            except ValueError:  # a point of low order, which would make the secret public
                return None
            self._agreed[peer] = theirs, self._derive(agreed, peer, theirs)
        return self._agreed[peer][1]

    def _derive(self, agreed: bytes, peer: PeerId, theirs: bytes) -> bytes:
        """From the ids, too: a peer that states the public key of another one would otherwise get that one's noise
        added a second time, and with the opposite sign, so that it is gone."""
        sides = sorted((id.encode(), key) for id, key in ((self._me, self.public), (peer, theirs)))
        info = b"".join(len(id).to_bytes(2) + id + key for id, key in sides)
        return HKDF(hashes.SHA256(), SECRET_BYTES, salt=None, info=CONTEXT + info).derive(agreed)
