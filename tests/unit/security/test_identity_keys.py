"""Signing with the identity key, and which credentials are accepted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from pfl_node.errors import ConfigError, Reason, Refused
from pfl_node.security.certificate import id_of, read_pem
from pfl_node.security.credentials import Credentials
from pfl_node.security.identity_keys import KEYS_LIMIT, IdentityKeys, Known
from pfl_node.security.x509_builder import Key, key_id, make_certificate, new_key
from tests.unit.membership.keyed_members import CONTEXT, Keyed, Peers, authority, credentials

DER = serialization.Encoding.DER


def keys(ca: str | None = "the CA") -> IdentityKeys:
    return IdentityKeys(Peers(credentials(new_key(), ca=ca)))


def der_of(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(DER)


def refusal(mine: IdentityKeys, credential: bytes) -> Reason:
    with pytest.raises(Refused) as caught:
        mine.add(credential)
    return caught.value.reason


@pytest.mark.parametrize("ca", ["the CA", None])
def test_a_signature_holds_for_these_bytes_and_this_member_only(ca: str | None) -> None:
    swarm = Keyed(3, ca=ca)
    ann, bob, eve = (swarm.knowing_all(id).keys for id in swarm.ids)
    signature = ann.sign(b"record")
    assert len(signature) == 64
    assert bob.verify(swarm.ids[0], b"record", signature)
    assert not bob.verify(swarm.ids[0], b"recorD", signature)
    assert not bob.verify(swarm.ids[0], b"record", signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not bob.verify(swarm.ids[0], b"record", bytes(64))
    assert not bob.verify(swarm.ids[0], b"record", b"short")
    assert not bob.verify(swarm.ids[0], b"record", eve.sign(b"record"))
    assert bob.verify("somebody", b"record", signature) is None


def test_with_a_ca_a_key_alone_and_a_certificate_of_another_ca_are_refused() -> None:
    mine, key = keys(), new_key()
    stranger = key.public_key().public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert refusal(mine, stranger) is Reason.GARBAGE
    issuer, roots = authority("another CA")
    assert refusal(mine, der_of(make_certificate(key.public_key(), roots, issuer, days=1))) is Reason.OTHER_CA
    own = credentials(key, ca=None).chain  # of the issuer whose private key is public
    assert refusal(mine, der_of(own)) is Reason.OTHER_CA


def test_a_ca_with_our_name_and_another_key_is_another_ca() -> None:
    fake = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the CA")])
    forged = make_certificate(new_key().public_key(), _self_signed(fake, name), fake, days=1)
    assert refusal(keys(), der_of(forged)) is Reason.OTHER_CA


def test_expired_revoked_and_operator_certificates_are_refused() -> None:
    issuer, roots = authority()
    late, key = datetime.now(UTC) - timedelta(days=3), new_key()
    old = make_certificate(key.public_key(), roots, issuer, days=1, start=late)
    assert refusal(keys(), der_of(old)) is Reason.EXPIRED
    operator = make_certificate(key.public_key(), roots, issuer, days=1, operator=True)
    assert refusal(keys(), der_of(operator)) is Reason.NOT_ALLOWED
    peers = Peers(credentials(new_key()), {str(key_id(key))})
    good = der_of(make_certificate(key.public_key(), roots, issuer, days=1))
    assert refusal(IdentityKeys(peers), good) is Reason.REVOKED
    assert not IdentityKeys(peers).permitted(key_id(key))


def test_a_member_cannot_issue_certificates() -> None:
    """A leaf certificate is not a CA, whatever it signs."""
    issuer, roots = authority()
    member, invented = new_key(), new_key()
    leaf = make_certificate(member.public_key(), roots, issuer, days=1)
    child = make_certificate(invented.public_key(), leaf, member, days=1)
    assert refusal(keys(), der_of(child) + der_of(leaf)) is Reason.OTHER_CA


def test_a_chain_through_an_intermediate_ca_is_followed() -> None:
    issuer, middle, key = new_key(), new_key(), new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    root = _self_signed(issuer, name)
    between = _ca_certificate(middle, "between", issuer, name)
    leaf = make_certificate(key.public_key(), between, middle, days=1)
    mine = credentials(new_key())
    peers = Peers(Credentials(mine.key, mine.chain, root, mine.certificate, CONTEXT, CONTEXT))
    assert IdentityKeys(peers).add(der_of(leaf) + der_of(between)) == key_id(key)
    assert refusal(IdentityKeys(peers), der_of(leaf)) is Reason.OTHER_CA


@pytest.mark.parametrize("credential", [b"", b"\x30", b"\xff" * 40, b"\x30\x00" * 5, bytes(9000)])
@pytest.mark.parametrize("ca", ["the CA", None])
def test_garbage_is_refused_as_garbage(ca: str | None, credential: bytes) -> None:
    assert refusal(keys(ca), credential) is Reason.GARBAGE


def test_with_pinned_ids_the_key_is_the_credential() -> None:
    mine, key = keys(None), new_key()
    public = key.public_key().public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert mine.add(public) == key_id(key) == id_of(public)
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    encoded = other.public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert refusal(mine, encoded) is Reason.GARBAGE


def test_a_renewed_certificate_is_served_and_another_ca_forgets_all_keys() -> None:
    key, friend = new_key(), new_key()
    peers = Peers(credentials(key))
    mine = IdentityKeys(peers)
    me, before = str(key_id(key)), mine.credential(str(key_id(key)))
    other = mine.add(der_of(credentials(friend).chain))
    peers.credentials = credentials(key, days=5)
    assert mine.credential(me) not in (None, before)
    assert mine.credential(other) is not None
    peers.credentials = credentials(key, ca="another CA")
    assert mine.credential(other) is None
    assert mine.credential(me) is not None


def test_an_rsa_key_is_a_clear_error() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    mine = credentials(new_key())
    with pytest.raises(ConfigError, match="is not P-256"):
        IdentityKeys(Peers(Credentials(pem, mine.chain, mine.roots, mine.certificate, CONTEXT, CONTEXT)))


def test_the_number_of_keys_is_bounded_and_the_own_one_stays() -> None:
    mine = keys()
    me = next(iter(mine._known))
    public = new_key().public_key()
    for n in range(KEYS_LIMIT - 1):
        mine._known[f"{n}"] = Known(b"", public)
    mine.add(der_of(credentials(new_key()).chain))
    assert len(mine._known) == KEYS_LIMIT
    assert me in mine._known


def _self_signed(key: Key, name: x509.Name) -> bytes:
    return _certificate(key.public_key(), name, key, name, path=1)


def _ca_certificate(key: Key, subject: str, issuer: Key, issued_by: x509.Name) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    return _certificate(key.public_key(), name, issuer, issued_by, path=0)


def _certificate(
    public: ec.EllipticCurvePublicKey, subject: x509.Name, issuer: Key, issued_by: x509.Name, *, path: int
) -> bytes:
    begin = datetime.now(UTC) - timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=path), critical=True)
    )
    pem = builder.sign(issuer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    assert read_pem(pem)
    return pem
