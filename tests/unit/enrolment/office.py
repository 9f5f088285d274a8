"""An operator, a bootstrap's enrolment on a real port with TLS, and sites, in one process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pfl_node.enrolment.enrolment_server import EnrolmentServer
from pfl_node.enrolment.invitations import Invitations
from pfl_node.enrolment.join_token import JoinToken
from pfl_node.enrolment.operator_calls import BootstrapPlace, EnrolmentOperator
from pfl_node.enrolment.site_calls import SiteRequest
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.security.ca import Authority
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import Trust

PLAN = SitePlan({"run": "wards", "policy": {"name": "el"}}, {})
WEEK = 7 * 86_400.0


class ServerThread:
    """Runs the enrolment in a thread, as the commands that call it block."""

    def __init__(self, server: EnrolmentServer, listen: str = "127.0.0.1:0") -> None:
        self.server = server
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.start(self._listen))
        self._ready.set()
        self._loop.run_forever()


class Office:
    def __init__(self, path: Path, authority: Authority, thread: ServerThread) -> None:
        self.path = path
        self.authority = authority
        self.server = thread.server
        self.operator = EnrolmentOperator(authority)

    def invite(self, name: str = "east", plan: SitePlan = PLAN, seconds: float = WEEK) -> JoinToken:
        [token] = self.operator.invite([name], plan, seconds=seconds)
        return token

    def site(self, token: JoinToken, directory: str = "east") -> SiteRequest:
        return SiteRequest(token, self.path / directory)


@contextmanager
def office(path: Path, *, ahead: float = 0.0) -> Iterator[Office]:
    """`ahead`: seconds by which the bootstrap's clock differs."""
    authority = Authority.create(path / "pfl-ca", "the wards' CA", 10)
    authority.issue_for(path / "bootstrap", name="bootstrap", days=1)
    trust = Trust(TlsFiles.find(path / "bootstrap"))
    invitations = Invitations(path / "bootstrap" / "enrolment")
    server = EnrolmentServer(invitations, trust, clock=lambda: time.time() + ahead)
    with ServerThread(server) as thread:
        BootstrapPlace.remember(authority, "127.0.0.1:7946", server.address)
        yield Office(path, authority, thread)
