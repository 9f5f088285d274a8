"""Signs with this node's identity key, and verifies signatures of members whose credentials it has checked.

A credential is a certificate chain in DER, or with pinned ids a public key. The id of a member is the hash of its
key, so a credential cannot be exchanged for another one. Imports `cryptography`; only nodes with TLS load it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID

from pfl_node.errors import ConfigError, PflError, Reason, Refused
from pfl_node.security import der
from pfl_node.security.certificate import Certificate, id_of, read_der
from pfl_node.security.credentials import PINNED_ISSUER, Credentials
from pfl_node.types import PeerId

CREDENTIAL_LIMIT = 8 << 10  # bytes
CHAIN_LIMIT = 4  # certificates
KEYS_LIMIT = 8192
HALF = 32  # bytes of each of the two numbers of a signature
DIGEST = 8
ECDSA = ec.ECDSA(hashes.SHA256())


class TrustedPeers(Protocol):
    """The part of `trust.Trust` that is used here."""

    credentials: Credentials

    @property
    def me(self) -> PeerId: ...
    def permit(self, peer: PeerId) -> None: ...
    def check(self, certificate: Certificate) -> None: ...


class Known:
    """A checked credential and its key."""

    __slots__ = ("credential", "digest", "key")

    def __init__(self, credential: bytes, key: ec.EllipticCurvePublicKey) -> None:
        self.credential = credential
        self.key = key
        self.digest = hashlib.sha256(credential).digest()[:DIGEST]


class IdentityKeys:
    def __init__(self, trust: TrustedPeers) -> None:
        self._trust = trust
        key = serialization.load_pem_private_key(trust.credentials.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ConfigError(f"the key of {trust.me} is not P-256, with which members sign their records")
        self._key = key
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._issuers: list[x509.Certificate] = []
        self._current: Credentials | None = None
        self._refresh()

    def sign(self, data: bytes) -> bytes:
        r, s = decode_dss_signature(self._key.sign(data, ECDSA))
        return r.to_bytes(HALF) + s.to_bytes(HALF)

    def verify(self, member: str, data: bytes, signature: bytes) -> bool | None:
        """None if the member's key is not known."""
        known = self._find(member)
        if known is None:
            return None
        if len(signature) != 2 * HALF:
            return False
        pair = encode_dss_signature(int.from_bytes(signature[:HALF]), int.from_bytes(signature[HALF:]))
        try:
            known.key.verify(pair, data, ECDSA)
        except InvalidSignature:
            return False
        return True

    def permitted(self, member: str) -> bool:
        try:
            self._trust.permit(PeerId(member))
        except PflError:
            return False
        return True

    def credential(self, member: str) -> bytes | None:
        known = self._find(member)
        return known.credential if known else None

    def digest(self, member: str) -> bytes:
        known = self._find(member)
        return known.digest if known else b""

    def add(self, credential: bytes) -> PeerId:
        """Check and keep a credential; the id of its owner. Raises Refused."""
        self._refresh()
        try:
            owner, key = self._owner(credential)
        except (ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension) as error:
            raise Refused(Reason.GARBAGE, f"a credential cannot be read: {error}") from error
        self._trust.permit(owner)
        self._keep(owner, credential, key)
        return owner

    def _keep(self, owner: PeerId, credential: bytes, key: ec.EllipticCurvePublicKey) -> None:
        self._known[owner] = Known(credential, key)
        self._known.move_to_end(owner)
        if len(self._known) > KEYS_LIMIT:
            del self._known[next(id for id in self._known if id != self._trust.credentials.id)]

    def _find(self, member: str) -> Known | None:
        self._refresh()
        return self._known.get(member)

    def _refresh(self) -> None:
        """Follow a renewed certificate. If the CA changed, every credential has to be checked again."""
        mine, old = self._trust.credentials, self._current
        if mine is old:
            return
        self._current = mine
        if old is None or mine.roots != old.roots:
            self._known.clear()
            self._issuers = x509.load_pem_x509_certificates(mine.roots)
        own = self._key.public_key()
        credential = _public_bytes(own) if self._pinned else b"".join(_ders(mine.chain))
        self._keep(mine.id, credential, own)

    @property
    def _pinned(self) -> bool:
        """With the issuer whose private key is public, a certificate proves no more than the key."""
        return self._trust.credentials.roots == PINNED_ISSUER

    def _owner(self, credential: bytes) -> tuple[PeerId, ec.EllipticCurvePublicKey]:
        if len(credential) > CREDENTIAL_LIMIT:
            raise ValueError(f"it has more than {CREDENTIAL_LIMIT} bytes")
        if self._pinned:
            return id_of(credential), _p256(serialization.load_der_public_key(credential))
        parts = [item.whole for item in der.items(credential)]
        if not 0 < len(parts) <= CHAIN_LIMIT:
            raise ValueError(f"it is not a chain of 1 to {CHAIN_LIMIT} certificates")
        leaf = read_der(parts[0])
        if leaf.operator:
            raise Refused(Reason.NOT_ALLOWED, f"{leaf.id} is an operator, which is not a member")
        self._trust.check(leaf)
        chain = [x509.load_der_x509_certificate(part) for part in parts]
        check_chain(chain, self._issuers)
        return leaf.id, _p256(chain[0].public_key())


def check_chain(chain: list[x509.Certificate], issuers: list[x509.Certificate]) -> None:
    """Raises Refused unless the chain leads to one of the issuers, as TLS requires it."""
    if not _for_clients(chain[0]):
        raise Refused(Reason.NOT_ALLOWED, "a certificate that is not for TLS clients")
    for depth, (lower, upper) in enumerate(pairwise(chain)):
        if not _issued(lower, upper, depth):
            raise Refused(Reason.OTHER_CA, "a certificate chain that is broken")
    if not any(_issued(chain[-1], issuer, len(chain) - 1) for issuer in issuers):
        raise Refused(Reason.OTHER_CA, f"a certificate of another CA ({chain[-1].issuer.rfc4514_string()!r})")


def _issued(lower: x509.Certificate, upper: x509.Certificate, depth: int) -> bool:
    """Did `upper`, a valid CA with `depth` other CAs below it, issue `lower`?"""
    now = datetime.now(UTC)
    if not all(c.not_valid_before_utc <= now <= c.not_valid_after_utc for c in (lower, upper)):
        return False
    try:
        lower.verify_directly_issued_by(upper)
        basic = upper.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return basic.ca and (basic.path_length is None or basic.path_length >= depth) and _signs_certificates(upper)


def _signs_certificates(issuer: x509.Certificate) -> bool:
    try:
        return issuer.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True


def _for_clients(leaf: x509.Certificate) -> bool:
    try:
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _p256(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its key is not P-256")
    return key


def _public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _ders(chain: bytes) -> list[bytes]:
    """The certificates of a PEM file, without the self-signed CA that some files end with."""
    found = x509.load_pem_x509_certificates(chain)
    parts = [c for n, c in enumerate(found) if n == 0 or c.issuer != c.subject]
    return [c.public_bytes(serialization.Encoding.DER) for c in parts]
