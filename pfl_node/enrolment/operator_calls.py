"""What the operator does with the CA's directory: invite sites, see who asks, and confirm them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pfl_node.address import parse_address
from pfl_node.enrolment.enrolment_client import (
    Bootstrap,
    OtherAuthority,
    Unreachable,
    check_clock,
    find_authority,
    trusting,
)
from pfl_node.enrolment.frames import Message, enrol_address
from pfl_node.enrolment.invitations import Invitation
from pfl_node.enrolment.join_token import JoinToken, digest_of, new_secret
from pfl_node.enrolment.proofs import TokenKeys, answer_tag, equal, request_tag
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.errors import ConfigError, StoreError
from pfl_node.security.ca import Authority
from pfl_node.security.certificate import read_pem
from pfl_node.security.x509_builder import key_id, read_request
from pfl_node.store.atomic import write_atomic

INVITATIONS, BOOTSTRAP, PLAN = "invitations.json", "bootstrap.json", "plan.json"
SESSION = 60.0  # minutes for which the operator's certificate is valid: more than clocks may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """An invitation as the operator keeps it: without the secret."""

    id: str
    name: str
    key: str  # hexadecimal; shows that a request was made with the token
    expires: float
    site: str = ""  # id of the node that was confirmed


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that the operator may confirm: it was made with the token of this name."""

    invited: Invited
    id: str  # of the site
    request: str


@dataclass(frozen=True, slots=True)
class BootstrapPlace:
    address: str  # that members dial
    enrol: str

    @classmethod
    def load(cls, authority: Authority) -> BootstrapPlace:
        file = authority.path / BOOTSTRAP
        try:
            return cls(**json.loads(file.read_bytes()))
        except FileNotFoundError as error:
            hint = "give its address once with `pfl-node ca invite --bootstrap HOST:PORT`"
            raise ConfigError(f"{authority.path} does not say where the bootstrap is: {hint}") from error
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{file} is damaged ({error}); move it away and give --bootstrap again") from error

    @classmethod
    def remember(cls, authority: Authority, address: str | None, enrol: str | None) -> BootstrapPlace:
        """Raises ConfigError for a malformed address."""
        address = address or cls.load(authority).address
        parse_address(address, what="bootstrap")
        parse_address(enrol := enrol or enrol_address(address), what="enrol")
        place = cls(address, enrol)
        place._save(authority)
        return place

    def _save(self, authority: Authority) -> None:
        write_atomic(authority.path / BOOTSTRAP, json.dumps(asdict(self)).encode() + b"\n")


class EnrolmentOperator:
    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.place = BootstrapPlace.load(authority)
        self._file = authority.path / INVITATIONS

    def last_plan(self) -> SitePlan | None:
        """That of the last invitation."""
        file = self.authority.path / PLAN
        return SitePlan.decode(file.read_text(encoding="utf-8")) if file.exists() else None

    def invite(self, names: Sequence[str], plan: SitePlan, *, seconds: float) -> list[JoinToken]:
        """A token for each name. Earlier tokens for these names are void. Raises ConfigError."""
        made = [
            JoinToken(
                name=name,
                run=plan.run,
                enrol=self.place.enrol,
                seeds=(self.place.address,),
                authority=digest_of(self.authority.certificate.whole),
                plan=plan.digest,
                expires=int(time.time() + seconds),
                secret=new_secret(),
            )
            for name in names
        ]
        keys = [TokenKeys.of(token.secret) for token in made]
        rows = [
            Invitation(id=k.id, name=t.name, key=k.bootstrap.hex(), expires=t.expires, plan=t.plan.hex())
            for t, k in zip(made, keys, strict=True)
        ]
        with self._bootstrap() as bootstrap:
            _asked(
                bootstrap, {"do": "invite", "invitations": [asdict(row) for row in rows], "plan": plan.encode()}
            )
        mine = [
            Invited(id=k.id, name=t.name, key=k.operator.hex(), expires=t.expires)
            for t, k in zip(made, keys, strict=True)
        ]
        kept = [one for one in self.invited() if one.site or one.name not in names]
        self._keep([*kept, *mine])
        write_atomic(self.authority.path / PLAN, plan.encode().encode())
        return made

    def pending(self) -> list[Pending]:
        """Raises ConfigError if the bootstrap shows a request that was not made with a token of this CA."""
        with self._bootstrap() as bootstrap:
            rows = _asked(bootstrap, {"do": "pending"}).get("pending")
        known = {one.id: one for one in self.invited()}
        try:
            return [_checked(row, known) for row in rows or () if row["invitation"] in known]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the bootstrap at {self.place.enrol} answers with garbage ({error})") from error

    def confirm(self, one: Pending, *, days: float) -> str:
        """Issue the certificate and deliver it. May be repeated. The end of its validity, in words."""
        revoked = self.authority.revoked_list().decode()
        certificate = self.authority.issue(one.request.encode(), name=one.invited.name, days=days).decode()
        tag = answer_tag(bytes.fromhex(one.invited.key), certificate, revoked)
        answer = {"certificate": certificate, "revoked": revoked, "tag": tag}
        with self._bootstrap() as bootstrap:
            _asked(bootstrap, {"do": "answer", "invitation": one.invited.id, **answer})
        done = replace(one.invited, site=one.id)
        self._keep([done if row.id == done.id else row for row in self.invited()])
        return f"{read_pem(certificate.encode()).not_after:%Y-%m-%d}"

    def withdraw(self, name: str) -> None:
        """Raises ConfigError if the name has no open invitation."""
        with self._bootstrap() as bootstrap:
            gone = _asked(bootstrap, {"do": "withdraw", "name": name}).get("withdrawn")
        if not gone:
            raise ConfigError(f"{name} has no open invitation; `pfl-node ca revoke {name}` removes a member")
        self._keep([one for one in self.invited() if one.site or one.name != name])

    def invited(self) -> list[Invited]:
        try:
            return [Invited(**row) for row in json.loads(self._file.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{self._file} is damaged ({error}); move it away and invite again") from error

    def _keep(self, rows: list[Invited]) -> None:
        write_atomic(self._file, json.dumps([asdict(row) for row in rows], indent=1).encode())

    @contextmanager
    def _bootstrap(self) -> Iterator[Bootstrap]:
        try:
            _, there = find_authority(self.place.enrol, digest_of(self.authority.certificate.whole))
        except Unreachable as error:
            hint = "start the bootstrap there with --enrol, as `pfl-node ca init` printed it, and open its port"
            raise Unreachable(f"{error}: {hint}") from error
        except OtherAuthority as error:
            hint = "give the right address once with `pfl-node ca invite --bootstrap HOST:PORT`"
            raise ConfigError(f"{error} than {self.authority.path}: {hint}") from error
        check_clock(self.place.enrol, there)
        with TemporaryDirectory(prefix=".session-", dir=self.authority.path) as scratch:  # mode 0700
            mine = self.authority.identify(Path(scratch), minutes=SESSION)
            yield Bootstrap(self.place.enrol, trusting(self.authority.pem, mine))


def _asked(bootstrap: Bootstrap, message: Message) -> dict[str, Any]:
    answer = bootstrap.call(lambda _: message)
    if "problem" in answer:
        raise ConfigError(f"the bootstrap at {bootstrap.address} refuses: {answer.get('text')}")
    return answer


def _checked(row: Message, known: dict[str, Invited]) -> Pending:
    invited, request = known[row["invitation"]], str(row["request"])
    if not equal(str(row["operator_tag"]), request_tag(bytes.fromhex(invited.key), request)):
        text = f"the request for {invited.name} was not made with its token: the bootstrap exchanged it"
        raise ConfigError(f"{text}; do not trust that machine, and invite {invited.name} again")
    public, _ = read_request(request.encode(), f"the request of {invited.name}")
    return Pending(invited, key_id(public), request)
