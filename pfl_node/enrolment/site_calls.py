"""What a site does with its token: make a key, ask the bootstrap, wait for the operator, and check the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.enrolment.enrolment_client import (
    Bootstrap,
    OtherAuthority,
    Unreachable,
    check_clock,
    find_authority,
    trusting,
)
from pfl_node.enrolment.frames import POLL, Message
from pfl_node.enrolment.invitations import Problem
from pfl_node.enrolment.join_token import JoinToken
from pfl_node.enrolment.proofs import TokenKeys, answer_tag, caller_tag, equal, request_tag
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.errors import ConfigError
from pfl_node.security.certificate import read_pem
from pfl_node.security.tls_files import CA, CERT, KEY, REVOKED
from pfl_node.security.x509_builder import key_id, make_request, own_key
from pfl_node.store.atomic import make_directory, write_atomic
from pfl_node.types import PeerId
from pfl_node.wire.connector import Proxy

ANSWER = 10.0  # seconds in addition to the bootstrap's own
NEW_TOKEN = "ask the operator for a new token"
ADVICE = {
    Problem.UNKNOWN: f"{NEW_TOKEN} (`pfl-node ca invite {{name}}`)",
    Problem.EXPIRED: f"{NEW_TOKEN} (`pfl-node ca invite {{name}}`)",
    Problem.USED: "repeat `pfl-node join` in the directory that used it, or ask the operator for a new token",
    Problem.BAD_REQUEST: "install the release that the operator uses",
}


@dataclass(frozen=True, slots=True)
class Certified:
    """The operator's answer, checked."""

    certificate: str  # PEM
    revoked: str


class SiteRequest:
    """Raises ConfigError; nothing that was written is lost, and everything may be repeated."""

    def __init__(self, token: JoinToken, directory: Path, proxy: Proxy | None = None) -> None:
        make_directory(directory)
        self.token = token
        self.directory = directory
        key, self.new = own_key(directory / KEY)
        self.id: PeerId = key_id(key)
        self._keys = TokenKeys.of(token.secret)
        self._request = make_request(key, token.name).decode()
        try:
            self._authority, there = find_authority(token.enrol, token.authority, proxy)
        except Unreachable as error:
            hint = "ask the operator whether the bootstrap runs with --enrol and its port is open, then repeat"
            if proxy:
                hint = f"the proxy must allow CONNECT to {', '.join((token.enrol, *token.seeds))}; {hint}"
            else:
                hint += "; if this site needs a proxy, add --set network.proxy=http://HOST:PORT"
            raise Unreachable(f"{error}: {hint}") from error
        except OtherAuthority as error:
            hint = "ask the operator whether the address is right, and for a new token if the CA is new"
            raise ConfigError(f"{error} than the token: {hint}") from error
        check_clock(token.enrol, there)
        self._bootstrap = Bootstrap(token.enrol, trusting(self._authority), proxy)

    def plan(self) -> SitePlan:
        """Ask for the first time; what all sites share."""
        text = str(self._ask(wait=False).get("plan"))
        plan = SitePlan.decode(text)
        if plan.digest != self.token.plan:
            raise ConfigError(
                "the bootstrap has another task or other settings than those that the token is for: "
                f"tell the operator, and {NEW_TOKEN}"
            )
        return plan

    def confirmed(self) -> Certified | None:
        """Wait some seconds for the operator."""
        answer = self._ask(wait=True).get("answer")
        if answer is None:
            return None
        if not isinstance(answer, dict):
            raise ConfigError(f"{self.token.enrol} answers with garbage")
        certificate, revoked, tag = (str(answer.get(key)) for key in ("certificate", "revoked", "tag"))
        if not equal(tag, answer_tag(self._keys.operator, certificate, revoked)):
            raise ConfigError(
                f"the answer is not the operator's: do not trust {self.token.enrol}, and {NEW_TOKEN}"
            )
        try:
            found = read_pem(certificate.encode()).id
        except ValueError as error:
            raise ConfigError(f"the answer is not a certificate ({error}): {NEW_TOKEN}") from error
        if found != self.id:
            raise ConfigError(f"the certificate is for {found}, and the key here is {self.id}: {NEW_TOKEN}")
        return Certified(certificate, revoked)

    def keep(self, certified: Certified) -> None:
        """The certificate last: with it, the directory has joined."""
        write_atomic(self.directory / CA, self._authority)
        write_atomic(self.directory / REVOKED, certified.revoked.encode())
        write_atomic(self.directory / CERT, certified.certificate.encode())

    def _ask(self, *, wait: bool) -> dict[str, Any]:
        answer = self._bootstrap.call(lambda server: self._message(server, wait=wait), timeout=POLL + ANSWER)
        if "problem" not in answer:
            return answer
        problem, text = str(answer["problem"]), str(answer.get("text"))
        if problem not in set(Problem):
            raise Unreachable(f"the bootstrap at {self.token.enrol} refuses: {text}")
        raise ConfigError(f"{text}: {ADVICE[Problem(problem)].format(name=self.token.name)}")

    def _message(self, server: bytes, *, wait: bool) -> Message:
        operator_tag = request_tag(self._keys.operator, self._request)
        return {
            "do": "ask",
            "invitation": self._keys.id,
            "request": self._request,
            "operator_tag": operator_tag,
            "tag": caller_tag(self._keys.bootstrap, server, self._request, operator_tag),
            "wait": wait,
        }
