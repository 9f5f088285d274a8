"""The one-time token that an operator gives to a site, as one word of letters and digits.

Bytes: version, length of all that follows (2), the fields, 4 bytes of SHA-256 over everything before. The checksum
tells a typing error from a token that is wrong; later versions keep this frame.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from pfl_node.address import parse_address
from pfl_node.enrolment.frames import enrol_address
from pfl_node.errors import ConfigError
from pfl_node.printable import check_word

PREFIX = "pfl"
VERSION = 1
EXPIRY, SECRET, DIGEST, CHECKSUM = 5, 16, 16, 4  # bytes
SEEDS = 8  # at most
LONGEST = 4096  # characters
COPY = "copy everything that `pfl-node ca invite` printed after `pfl-node join`"


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET)


def digest_of(data: bytes) -> bytes:
    """Half of a SHA-256: to find other data with the same digest is infeasible."""
    return hashlib.sha256(data).digest()[:DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    name: str  # of the site
    run: str
    enrol: str  # HOST:PORT where to ask
    seeds: tuple[str, ...]  # HOST:PORT of members
    authority: bytes  # digest of the CA's certificate in DER
    plan: bytes  # digest of the task and the settings that all sites share
    expires: int  # seconds since 1970
    secret: bytes

    def encode(self) -> str:
        enrol = "" if self.enrol == enrol_address(self.seeds[0]) else self.enrol
        texts = (self.name, self.run, enrol, *self.seeds)
        body = self.expires.to_bytes(EXPIRY) + self.secret + self.authority + self.plan
        body += b"".join(map(_packed, texts))
        framed = bytes((VERSION,)) + (len(body) + CHECKSUM).to_bytes(2) + body
        word = base64.b32encode(framed + _checksum(framed)).decode().rstrip("=").lower()
        return PREFIX + word

    @property
    def expiry(self) -> str:
        return f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """Line breaks, spaces, capital letters and a leading `pfl-node join` do not matter. Raises ConfigError."""
        return _fields(_unframed(_bytes(text)))


def _bytes(text: str) -> bytes:
    word = "".join(re.sub(r"^.*\bjoin\s", "", text, flags=re.S).split()).lower()
    if not word.startswith(PREFIX) or not 40 < len(word) < LONGEST:
        raise ConfigError(f"this is not a join token, which starts with {PREFIX!r} and is a long word: {COPY}")
    word = word.removeprefix(PREFIX)
    if len(word) % 8 in (1, 3, 6):  # no whole number of bytes: it was cut off
        word = word[:-1]
    try:
        return base64.b32decode(word + "=" * (-len(word) % 8), casefold=True)
    except ValueError as error:
        raise ConfigError(f"the token has a typing error: {COPY}") from error


def _unframed(data: bytes) -> bytes:
    version, wanted, had = data[0], int.from_bytes(data[1:3]), len(data) - 3
    if had < wanted <= 2 * LONGEST:
        raise ConfigError(f"the token is not complete, {had / wanted:.0%} of it is here: {COPY}")
    if had != wanted or _checksum(data[:-CHECKSUM]) != data[-CHECKSUM:]:
        raise ConfigError(f"the token has a typing error: {COPY}")
    if version != VERSION:
        text = f"the token is of version {version}, and this pfl-node reads version {VERSION}"
        raise ConfigError(f"{text}: install the release that the operator uses")
    return data[3:-CHECKSUM]


def _fields(body: bytes) -> JoinToken:
    """The checksum is right, so a mistake here is the maker's."""
    try:
        expires, secret, authority, plan, rest = _cut(body, EXPIRY, SECRET, DIGEST, DIGEST)
        name, run, enrol, *seeds = _texts(rest)
        if not 0 < len(seeds) <= SEEDS:
            raise ValueError(f"it names {len(seeds)} seeds")
        for word in (name, run):
            check_word("the token's name", word)
        enrol = enrol or enrol_address(seeds[0])
        for address in (enrol, *seeds):
            parse_address(address)
        datetime.fromtimestamp(int.from_bytes(expires), UTC)
    except (ValueError, IndexError, OverflowError, OSError, ConfigError) as error:
        raise ConfigError(f"the token cannot be used ({error}): ask the operator for another one") from error
    return JoinToken(
        name=name,
        run=run,
        enrol=enrol,
        seeds=tuple(seeds),
        expires=int.from_bytes(expires),
        secret=secret,
        authority=authority,
        plan=plan,
    )


def _cut(data: bytes, *sizes: int) -> list[bytes]:
    """Pieces of these sizes, and the rest."""
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [*found, data]


def _packed(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ConfigError(f"{text[:40]}… is too long for a token: 255 bytes at most")
    return bytes((len(data),)) + data


def _texts(data: bytes) -> list[str]:
    """Raises ValueError."""
    found, at = [], 0
    while at < len(data):
        size = data[at]
        if at + 1 + size > len(data):
            raise ValueError("a field is cut off")
        found.append(data[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return found


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:CHECKSUM]
