"""The invitations that a bootstrap keeps, with the request and the answer of each, in a directory of its own.

A request needs an invitation, so strangers can add nothing. Time is passed in; every change is on disk before it
is answered.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pfl_node.enrolment.join_token import digest_of
from pfl_node.enrolment.proofs import caller_tag, equal
from pfl_node.errors import PflError, StoreError
from pfl_node.security import der
from pfl_node.security.certificate import id_of
from pfl_node.store.atomic import make_directory, remove, write_atomic

MOST = 256  # invitations
REQUEST_LIMIT = 4 << 10  # bytes of a certificate request
KEPT = 30 * 86_400  # seconds for which an expired invitation is remembered, to tell why it is refused


class Problem(StrEnum):
    """Why a site's request is refused."""

    UNKNOWN = "unknown"
    EXPIRED = "expired"
    USED = "used"
    BAD_REQUEST = "bad_request"


class NotInvited(PflError):
    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAnswer:
    """The operator's: a certificate, the revoked ids, and the tag of both."""

    certificate: str
    revoked: str
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    id: str
    name: str
    key: str  # hexadecimal; proves that a request comes from the holder of the token
    expires: float
    plan: str  # digest
    site: str = ""  # id of the node that used it
    request: str = ""  # PEM
    operator_tag: str = ""
    answer: SignedAnswer | None = None


class Invitations:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "invitations.json"
        make_directory(directory)
        self._known: dict[str, Invitation] = _read(self._file)

    def __len__(self) -> int:
        return len(self._known)

    def pending(self) -> list[Invitation]:
        return [one for one in self._known.values() if one.request and not one.answer]

    def invite(self, given: Iterable[Invitation], plan: str, now: float) -> None:
        """Replaces open invitations of the same names. Raises PflError if there are too many."""
        fresh = {one.id: one for one in given}
        names = {one.name for one in fresh.values()}
        kept = {
            id: one
            for id, one in self._known.items()
            if one.expires + KEPT > now and (one.answer or one.name not in names)
        }
        kept |= fresh
        for id in [id for id, one in kept.items() if one.expires <= now][: max(0, len(kept) - MOST)]:
            del kept[id]
        if len(kept) > MOST:
            raise PflError(f"there are {len(kept) - len(fresh)} invitations, and {MOST} are possible")
        digest = digest_of(plan.encode()).hex()
        write_atomic(self._plan(digest), plan.encode())
        self._keep(kept)

    def withdraw(self, name: str) -> int:
        """The number of open invitations that this name had."""
        gone = [id for id, one in self._known.items() if one.name == name and not one.answer]
        if gone:
            self._keep({id: one for id, one in self._known.items() if id not in gone})
        return len(gone)

    def ask(self, id: str, server: bytes, request: str, operator_tag: str, tag: str, now: float) -> Invitation:
        """A site's request. The first one that is proved uses the invitation up for every other site. Raises
        NotInvited."""
        found = self._known.get(id)
        key = bytes.fromhex(found.key) if found else b""
        if found is None or not equal(tag, caller_tag(key, server, request, operator_tag)):
            raise NotInvited(
                Problem.UNKNOWN, "the bootstrap does not know this token; it was withdrawn or replaced"
            )
        if found.expires <= now and not found.answer:
            raise NotInvited(Problem.EXPIRED, f"the token expired on {_minute(found.expires)}")
        site = _site(request)
        if found.site and found.site != site:
            text = f"the token was used by another node ({found.site}), and is good for one"
            raise NotInvited(Problem.USED, text)
        if found.site:
            return found
        asked = replace(found, site=site, request=request, operator_tag=operator_tag)
        self._keep({**self._known, id: asked})
        return asked

    def answer(self, id: str, answer: SignedAnswer) -> None:
        """Raises PflError."""
        found = self._known.get(id)
        if found is None or not found.request:
            raise PflError("there is no request that this would answer")
        self._keep({**self._known, id: replace(found, answer=answer)})

    def plan_of(self, invitation: Invitation) -> str:
        try:
            return self._plan(invitation.plan).read_text(encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot read the plan of {invitation.name}: {error.strerror or error}") from error

    def _plan(self, digest: str) -> Path:
        return self._directory / f"plan-{digest}.json"

    def _keep(self, known: dict[str, Invitation]) -> None:
        rows = [asdict(one) for one in known.values()]
        write_atomic(self._file, json.dumps(rows, indent=1).encode())
        for digest in {one.plan for one in self._known.values()} - {one.plan for one in known.values()}:
            remove(self._plan(digest))
        self._known = known


def _site(request: str) -> str:
    """The id of the key in a certificate request, whose signature the operator checks. Raises NotInvited."""
    try:
        if len(request) > REQUEST_LIMIT:
            raise ValueError("it is too long")
        pem = request.strip().replace("CERTIFICATE REQUEST", "CERTIFICATE")
        outer = der.first(ssl.PEM_cert_to_DER_cert(pem)).children()
        _, _, public_key, *_ = outer[0].children()
        return id_of(public_key.whole)
    except (ValueError, IndexError) as error:
        raise NotInvited(Problem.BAD_REQUEST, f"the certificate request cannot be read ({error})") from error


def _read(file: Path) -> dict[str, Invitation]:
    """Raises StoreError."""
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_bytes())
        return {row["id"]: Invitation(**{**row, "answer": _answer(row["answer"])}) for row in rows}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged ({error}); move it away and invite again") from error


def _answer(row: dict[str, str] | None) -> SignedAnswer | None:
    return SignedAnswer(**row) if row else None


def _minute(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
