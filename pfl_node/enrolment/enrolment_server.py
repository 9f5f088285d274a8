"""The port where sites that have a token ask for a certificate. A bootstrap opens it beside its own port.

Strangers can connect, so it is not gRPC: a caller may send one small message, and before it has proved that it has
a token, it costs a TLS handshake and a hash.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from pfl_node.address import join_address, parse_address
from pfl_node.enrolment.caller_limits import CallerLimits
from pfl_node.enrolment.frames import (
    ALPN,
    CALLER_LIMIT,
    HEAD,
    OPERATOR_LIMIT,
    POLL,
    BadFrame,
    Message,
    frame,
    parse,
    size_of,
    text_of,
)
from pfl_node.enrolment.invitations import Invitation, Invitations, NotInvited, SignedAnswer
from pfl_node.errors import ConfigError, PflError, Unavailable
from pfl_node.security.certificate import ENROLMENT, Certificate, read_der
from pfl_node.security.trust import Trust

log = logging.getLogger(__name__)

HANDSHAKE = 5.0  # seconds
REQUEST = 10.0  # seconds until the whole request must be here, the handshake included
SENDING = 60.0  # seconds for an answer
BACKLOG = 64
PAUSE = 0.001  # seconds after a connection that is turned away: the event loop is for members first
RETRY = 0.1  # seconds until the next attempt to accept, if no file can be opened


class EnrolmentServer:
    def __init__(self, invitations: Invitations, trust: Trust, *, clock: Callable[[], float] = time.time) -> None:
        if trust.files.pinned:
            raise ConfigError(
                "--enrol needs a CA, and this bootstrap trusts a list of ids: use `pfl-node ca init`"
            )
        self.invitations = invitations
        self.counters: Counter[str] = Counter()  # connections, by what became of them
        self.address = ""
        self._trust = trust
        self._clock = clock
        self._limits: CallerLimits[asyncio.Task[None]] = CallerLimits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Event] = {}  # by invitation: one site waits for the operator
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._context: tuple[int, ssl.SSLContext, bytes] | None = None

    async def start(self, listen: str) -> None:
        """Raises Unavailable."""
        host, port = parse_address(listen, what="enrol", any_port=True)
        try:
            six = ":" in host
            family = socket.AF_INET6 if six else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=six)
        except OSError as error:
            why = f"port {port} is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
            text = f"cannot listen on {listen} for enrolment: {why}; choose another with --enrol HOST:PORT"
            raise Unavailable(f"{text}, and give it to `pfl-node ca invite --enrol`") from error
        self._socket.setblocking(False)
        self.address = join_address(host, int(self._socket.getsockname()[1]))
        self._accepting = asyncio.create_task(self._accept(self._socket))

    async def stop(self) -> None:
        tasks = {*self._tasks, *([self._accepting] if self._accepting else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError:  # no file or memory is left, or the caller has gone
                await asyncio.sleep(RETRY)
                continue
            host = str(address[0])
            if not self._limits.admit(host, loop.time()):
                self.counters["too many"] += 1
                accepted.close()
                await asyncio.sleep(PAUSE)
                continue
            task = loop.create_task(self._serve(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            if (oldest := self._limits.add(task, host)) is not None:
                self.counters["evicted"] += 1
                oldest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._limits.remove(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("an enrolment failed", exc_info=error)

    async def _serve(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CALLER_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        try:
            context, server = self._tls()
            async with asyncio.timeout(REQUEST):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=HANDSHAKE
                )
                operator = self._is_operator(transport)
                limit = OPERATOR_LIMIT if operator else CALLER_LIMIT
                size = size_of(await reader.readexactly(HEAD), limit)
                message = parse(await reader.readexactly(size))
            answer = await self._answer(message, server, operator=operator)
            async with asyncio.timeout(SENDING):
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                writer.write(frame(answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (BadFrame, EOFError, OSError, TimeoutError) as error:
            self.counters["not a request"] += 1
            log.debug("a caller of the enrolment sent no request: %s", error)
        finally:
            with suppress(OSError):
                transport.abort() if transport else accepted.close()

    async def _answer(self, message: Message, server: bytes, *, operator: bool) -> Message:
        try:
            do = text_of(message, "do")
            if do == "ca":
                self.counters["ca"] += 1
                return {"ca": self._trust.credentials.roots.decode(), "now": self._clock()}
            if do == "ask":
                return await self._asked(message, server)
            if not operator:
                raise PflError("only the operator who has the CA's key may do this")
            return self._operate(do, message)
        except NotInvited as refused:
            self.counters[refused.problem] += 1
            return {"problem": refused.problem, "text": str(refused), "now": self._clock()}
        except PflError as error:
            return {"problem": "failed", "text": str(error)}

    async def _asked(self, message: Message, server: bytes) -> Message:
        words = [text_of(message, key) for key in ("invitation", "request", "operator_tag", "tag")]
        id, request, operator_tag, tag = words
        known = {one.id for one in self.invitations.pending()}
        found = self.invitations.ask(id, server, request, operator_tag, tag, self._clock())
        if (task := asyncio.current_task()) is not None:
            self._limits.remove(task)  # it is not a stranger any more
        if found.id not in known and not found.answer:
            log.info("a site asks to join; confirm it with `pfl-node ca confirm`", extra=_facts(found))
        if message.get("wait") is True and not found.answer:
            await self._operator_answers(id)
            found = self.invitations.ask(id, server, request, operator_tag, tag, self._clock())
        self.counters["asked"] += 1
        answer = found.answer
        return {
            "plan": self.invitations.plan_of(found),
            "now": self._clock(),
            "answer": {"certificate": answer.certificate, "revoked": answer.revoked, "tag": answer.tag}
            if answer
            else None,
        }

    async def _operator_answers(self, id: str) -> None:
        """Wait, but only for the newest connection of an invitation."""
        if older := self._waiting.get(id):
            older.set()
        self._waiting[id] = mine = asyncio.Event()
        try:
            async with asyncio.timeout(POLL):
                await mine.wait()
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(id) is mine:
                del self._waiting[id]

    def _operate(self, do: str, message: Message) -> Message:
        self.counters["operator"] += 1
        match do:
            case "invite":
                self.invitations.invite(_invited(message), text_of(message, "plan"), self._clock())
                return {"done": True, "now": self._clock()}
            case "pending":
                waiting = [_for_operator(one) for one in self.invitations.pending()]
                return {"pending": waiting, "now": self._clock()}
            case "answer":
                id = text_of(message, "invitation")
                words = {key: text_of(message, key) for key in ("certificate", "revoked", "tag")}
                self.invitations.answer(id, SignedAnswer(**words))
                if site := self._waiting.get(id):
                    site.set()
                return {"done": True}
            case "withdraw":
                return {"withdrawn": self.invitations.withdraw(text_of(message, "name"))}
        raise BadFrame(f"there is no request {do!r}")

    def _is_operator(self, transport: asyncio.Transport) -> bool:
        """Whether the caller has presented a certificate that the CA's own commands make for an hour."""
        data = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            certificate: Certificate | None = read_der(data) if data else None
        except ValueError:
            return False
        return certificate is not None and ENROLMENT in certificate.names and not certificate.expired()

    def _tls(self) -> tuple[ssl.SSLContext, bytes]:
        """The context for the current certificate, and the digest of that certificate."""
        generation = self._trust.generation
        if self._context is None or self._context[0] != generation:
            mine = self._trust.credentials
            self._context = (generation, _context(self._trust), hashlib.sha256(mine.certificate.whole).digest())
        return self._context[1:]


def _context(trust: Trust) -> ssl.SSLContext:
    """A client certificate is optional: only the operator has one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0
    context.set_alpn_protocols([ALPN])
    context.load_verify_locations(cadata=trust.credentials.roots.decode("ascii"))
    context.load_cert_chain(trust.files.cert, trust.files.key)
    return context


def _invited(message: Message) -> list[Invitation]:
    try:
        return [Invitation(**row) for row in message["invitations"]]
    except (KeyError, TypeError) as error:
        raise BadFrame(f"no invitations: {error}") from error


def _facts(invitation: Invitation) -> dict[str, str]:
    return {"site": invitation.name, "id": invitation.site}


def _for_operator(one: Invitation) -> Message:
    return {
        "invitation": one.id,
        "name": one.name,
        "site": one.site,
        "request": one.request,
        "operator_tag": one.operator_tag,
        "expires": one.expires,
    }
