"""Creates keys and certificates, with `cryptography`. A running node with a CA does not load it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pfl_node.errors import ConfigError
from pfl_node.printable import printable
from pfl_node.security.certificate import OPERATOR, id_of
from pfl_node.security.credentials import PINNED_ISSUER, PINNED_ISSUER_NAME
from pfl_node.security.tls_files import write_private
from pfl_node.types import PeerId

Key = ec.EllipticCurvePrivateKey
SKEW = timedelta(hours=1)  # by which clocks of peers may be behind ours


def new_key() -> Key:
    """P-256: gRPC's TLS refuses Ed25519 (NO_COMMON_SIGNATURE_ALGORITHMS)."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(path: Path) -> Key:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a private key in PEM without a passphrase") from error
    if not isinstance(key, Key) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{path} is not a P-256 key, which TLS connections between nodes need")
    return key


def own_key(path: Path) -> tuple[Key, bool]:
    """The key in this file, and whether it was created now."""
    if path.exists():
        return load_key(path), False
    key = new_key()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, key_pem(key))
    return key, True


def key_id(key: Key | ec.EllipticCurvePublicKey) -> PeerId:
    public = key.public_key() if isinstance(key, Key) else key
    return id_of(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def make_request(key: Key, name: str = "") -> bytes:
    """A certificate request: the public key and a name, signed by the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(key_id(key), name))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes, where: str) -> tuple[ec.EllipticCurvePublicKey, str]:
    """The public key and the name in a request."""
    try:
        request = x509.load_pem_x509_csr(pem)
        genuine = request.is_signature_valid
    except (ValueError, InvalidSignature) as error:
        text = f"{where} is not a certificate request; `pfl-node identity --request` prints one"
        raise ConfigError(text) from error
    key = request.public_key()
    if not genuine:
        raise ConfigError(f"{where} is not signed by the key in it")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{where} is for a key that is not P-256")
    names = request.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    name = str(names[0].value) if names else ""
    if not name.isprintable():  # it could hide the id, which the operator compares, on a terminal
        raise ConfigError(f"{where} has an unprintable name ({printable(name)}): do not trust it")
    return key, name


def make_authority(key: Key, name: str, days: float, start: datetime | None = None) -> bytes:
    """The self-signed certificate of a CA."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key(), timedelta(days=days), start)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_certificate(
    public: ec.EllipticCurvePublicKey,
    authority: bytes,
    authority_key: Key,
    *,
    name: str = "",
    days: float,
    operator: bool = False,
    start: datetime | None = None,
    marks: tuple[str, ...] = (),
) -> bytes:
    """A certificate for the owner of this key, with the id of the key. `marks` are further DNS names."""
    issuer = x509.load_pem_x509_certificate(authority)
    me = key_id(public)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([] if operator else [ExtendedKeyUsageOID.SERVER_AUTH])
    names = [x509.DNSName(dns) for dns in (me, *([OPERATOR] if operator else []), *marks)]
    builder = _builder(_subject(me, name), issuer.subject, public, timedelta(days=days), start)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
    )
    return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_own_certificate(key: Key, name: str = "", days: float = 3650, start: datetime | None = None) -> bytes:
    """Without a CA: issued by PINNED_ISSUER, so that only the id counts."""
    return make_certificate(
        key.public_key(), PINNED_ISSUER, pinned_issuer_key(), name=name, days=days, start=start
    )


def pinned_issuer_key() -> Key:
    """The private key that everyone knows: the number 1."""
    return ec.derive_private_key(1, ec.SECP256R1())


def make_pinned_issuer() -> bytes:
    """A certificate like PINNED_ISSUER, valid from 2020 to 2120."""
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
    days = (end - start) / timedelta(days=1)
    return make_authority(pinned_issuer_key(), PINNED_ISSUER_NAME, days, start)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    life: timedelta,
    start: datetime | None = None,
) -> x509.CertificateBuilder:
    begin = start or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - SKEW)
        .not_valid_after(begin + life)
    )


def _subject(id: PeerId, name: str) -> x509.Name:
    """Unique because of the id: given two equal subjects, a verifier may pick the wrong one as the issuer."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, id)]
    if name:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, name[:64]))
    return x509.Name(parts)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
