"""Signatures of member records: the port through which the state machine signs and verifies, and its two sides.

Only a member itself can sign its record, so no other node can create a member, move it, increase its incarnation
or announce its departure. That a member is suspected or dead is an opinion, which needs no signature.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from pfl_node.membership.member import Member, Reachability, Seal

CONTEXT = b"pfl-node member record 2\0"  # a signature for another purpose is not valid here
SIGNATURE_BYTES = 64
CREDENTIAL_BYTES = 8  # bytes of the hash in a record
PAIR_KEY_BYTES = 32
FRESH = 600  # seconds for which a record shows that its member is probably running
RENEWAL = 120.0  # seconds after which a member signs its record again
CACHE = 8192  # records
OFFERS_RELAY = b"\1"  # shorter than the length of a text
PAIR_KEY = b"\x80"  # neither a reachability nor the first byte of a text's length
REACHABILITY_BYTE = {reachability: bytes([n]) for n, reachability in enumerate(Reachability)}


class Proof(StrEnum):
    GENUINE = "genuine"
    UNKNOWN = "unknown"  # the member's key is not known yet
    BARRED = "barred"  # a revoked id, or one that is not on the allow-list
    FORGED = "forged"


class Signatures(Protocol):
    required: bool

    def sign(self, member: Member) -> Member:
        """This member's own record with a new signature."""

    def verify(self, member: Member) -> Proof: ...

    def fresh(self, member: Member) -> bool:
        """Was the record signed recently? An old one may be a replay: its member has to answer a ping first."""

    def outdated(self, member: Member) -> bool:
        """Does a genuine record name a newer credential than the known one?"""


class Unsigned:
    """Without TLS there are no keys."""

    required = False

    def sign(self, member: Member) -> Member:
        return member

    def verify(self, member: Member) -> Proof:  # noqa: ARG002
        return Proof.UNKNOWN

    def fresh(self, member: Member) -> bool:  # noqa: ARG002
        return False

    def outdated(self, member: Member) -> bool:  # noqa: ARG002
        return False


UNSIGNED = Unsigned()


class Keys(Protocol):
    """This node's private key and the public keys of members; `security.identity_keys` has the real ones."""

    def sign(self, data: bytes) -> bytes: ...

    def verify(self, member: str, data: bytes, signature: bytes) -> bool | None:
        """None if the member's key is not known."""

    def permitted(self, member: str) -> bool:
        """False if the id is revoked or not on the allow-list."""

    def credential(self, member: str) -> bytes | None:
        """The certificate chain or key with which others verify the member's records."""

    def digest(self, member: str) -> bytes:
        """A short hash of the credential; empty if there is none."""

    def add(self, credential: bytes) -> str:
        """Check and keep a credential; returns the id of its owner. Raises Refused."""


class Signed:
    """With TLS: each record is signed with the key of its member. Verified records are cached by signature."""

    required = True

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self.keys = keys
        self._clock = clock
        self._verified: OrderedDict[bytes, Member] = OrderedDict()  # verified records by signature

    def sign(self, member: Member) -> Member:
        seal = Seal(int(self._clock()), self.keys.digest(member.id), b"")
        return replace(member, seal=replace(seal, signature=self.keys.sign(signed_bytes(member, seal))))

    def verify(self, member: Member) -> Proof:
        if not self.keys.permitted(member.id):
            return Proof.BARRED
        seal = member.seal
        if seal is None:
            return Proof.FORGED
        known = self._verified.get(seal.signature)
        if known is not None and _same_record(known, member):
            return Proof.GENUINE
        genuine = self.keys.verify(member.id, signed_bytes(member, seal), seal.signature)
        if genuine is None:
            return Proof.UNKNOWN
        if not genuine:
            return Proof.FORGED
        self._verified[seal.signature] = member
        if len(self._verified) > CACHE:
            self._verified.popitem(last=False)
        return Proof.GENUINE

    def fresh(self, member: Member) -> bool:
        return member.seal is not None and abs(self._clock() - member.seal.at) <= FRESH

    def outdated(self, member: Member) -> bool:
        return member.seal is not None and member.seal.credential != self.keys.digest(member.id)


def signed_bytes(member: Member, seal: Seal) -> bytes:
    """The bytes that a member signs. Lengths precede the texts, so that two records never have the same bytes. A
    record that does not state its reachability or a pair key has the same bytes as before these fields existed."""
    texts = [text.encode() for text in (member.id, member.name, member.address, member.role, member.run)]
    numbers = struct.pack(">qQQ?", member.round, member.incarnation, seal.at, member.left)
    pair_key = PAIR_KEY + member.pair_key if member.pair_key else b""
    return CONTEXT + _framed((*texts, seal.credential)) + numbers + _reach_bytes(member) + pair_key


def _reach_bytes(member: Member) -> bytes:
    if member.reachability is Reachability.UNKNOWN and not member.relays and not member.offers_relay:
        return b""
    relays = _framed(relay.encode() for relay in member.relays)
    return REACHABILITY_BYTE[member.reachability] + relays + (OFFERS_RELAY if member.offers_relay else b"")


def _framed(texts: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack(">H", len(text)) + text for text in texts)


def _same_record(one: Member, other: Member) -> bool:
    """Whether two records are equal except for opinions. The state of a member that has not left is an opinion."""
    return one.seal == other.seal and one.left is other.left and replace(one, state=other.state) == other
