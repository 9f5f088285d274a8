"""The checks of `pfl-node doctor` before a node has started: settings, seeds, disk and task."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from grpc import RpcError

from pfl_node.address import parse_address
from pfl_node.daemon.advertise import advertised_address
from pfl_node.daemon.network_setup import proxy_of
from pfl_node.daemon.tls_setup import tls_files, why_tls
from pfl_node.errors import PeerError, PflError, Refused, Unavailable
from pfl_node.learning.task import Place
from pfl_node.membership import membership_pb2
from pfl_node.membership.member import Member
from pfl_node.membership.member_calls import DialBackAnswer
from pfl_node.membership.reachability import WHAT_TO_DO
from pfl_node.membership.service import Membership
from pfl_node.ops.amounts import span
from pfl_node.ops.machine_checks import (
    DAY,
    certificate_check,
    clock_check,
    data_check,
    device_check,
    disk_check,
    key_check,
    traffic_check,
    version_check,
)
from pfl_node.ops.node_health import NO_RELAY, HealthCheck, Level, ok
from pfl_node.plugin import explain
from pfl_node.settings import Settings
from pfl_node.store.data_dir import DEFAULT_ROOT
from pfl_node.wire import membership_pb2_grpc, peer_pb2
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.peer_stub import PeerStub
from pfl_node.wire.tls import Tls

SEEDS = 3  # number of seeds that are asked
TIMEOUT = 3.0  # seconds
NO_ANSWER_TODO = "start one of them, or check the address and the firewall"
REFUSED_TODO = "ask the operator; the certificate of this site is not accepted there, or the address is wrong"
PRESENT = membership_pb2.Member.State.ALIVE


async def first_start_checks(settings: Settings) -> list[HealthCheck]:
    """Opens the port for a moment, and calls the task."""
    checks = [disk_check(settings.data_dir or DEFAULT_ROOT)]
    try:
        tls = _tls(settings)
    except PflError as error:
        return [
            *checks,
            HealthCheck("certificate", Level.FAIL, str(error), "see docs/operate.md"),
            *_task(settings),
        ]
    checks.append(certificate_check(tls.trust.credentials.certificate if tls else None))
    checks.append(key_check(tls.trust.files.key if tls else None))
    try:
        dialer = tls.dialer if tls else Dialer()
        async with _listening(settings, tls, dialer) as membership:
            checks += await _network_checks(settings, membership, dialer)
    except Unavailable as error:
        todo = "stop the other process, or set another port"
        checks.append(HealthCheck("reachable", Level.FAIL, str(error), todo))
    except PflError as error:
        checks.append(HealthCheck("reachable", Level.FAIL, str(error), "set advertise"))
    return [*checks, *await asyncio.to_thread(_task, settings)]


def _tls(settings: Settings) -> Tls | None:
    return Tls(tls_files(settings, settings.data_dir), name=settings.name or "") if why_tls(settings) else None


@asynccontextmanager
async def _listening(settings: Settings, tls: Tls | None, dialer: Dialer) -> AsyncIterator[Membership]:
    """A member of no swarm, at the address that the node will advertise."""
    endpoint = Endpoint(tls=tls)
    dialer.paths.connector.proxy = proxy = proxy_of(settings.network)
    me = Member(tls.id if tls else secrets.token_hex(8), settings.name or "doctor", run=settings.run)
    rng = random.Random(me.id)
    membership = attach_membership(endpoint, me, settings.membership, rng=rng, dialer=dialer)
    try:
        await endpoint.bind(settings.listen, membership.bind)
        await endpoint.start()
        seeds = [proxy.address] if proxy else settings.peer_seed
        address = await advertised_address(
            settings.advertise, endpoint.host, endpoint.port, seeds, patience=TIMEOUT
        )
        await membership.start((), advertise=address)
        yield membership
    finally:
        await membership.close()
        await endpoint.stop(0)


async def _network_checks(settings: Settings, membership: Membership, dialer: Dialer) -> list[HealthCheck]:
    seeds = [seed for seed in settings.peer_seed if seed != membership.me.address][:SEEDS]
    asked = await asyncio.gather(*(_dial_back(membership, seed) for seed in seeds))
    answers = {
        seed: answer for seed, answer in zip(seeds, asked, strict=True) if isinstance(answer, DialBackAnswer)
    }
    errors = {seed: error for seed, error in zip(seeds, asked, strict=True) if isinstance(error, PeerError)}
    versions = await asyncio.gather(*(_version(dialer, seed) for seed in answers))
    return [
        _seeds(seeds, errors),
        _reachable(settings, membership.me.address, answers, await _relays(settings, dialer, answers)),
        clock_check([answer.clock_ahead for answer in answers.values()]),
        version_check({seed: version for seed, version in zip(answers, versions, strict=True) if version}),
    ]


async def _dial_back(membership: Membership, seed: str) -> DialBackAnswer | PeerError:
    try:
        return await membership.dial_back(seed, membership.me)
    except PeerError as error:
        return error


def _seeds(seeds: Sequence[str], errors: dict[str, PeerError]) -> HealthCheck:
    if not seeds:
        return HealthCheck(
            "seeds", Level.WAITING, "there is no peer_seed", "name this node as a seed at the others"
        )
    text = "; ".join(f"{seed}: {error.text}" for seed, error in errors.items())
    if len(errors) == len(seeds):
        refused = all(isinstance(error, Refused) for error in errors.values())
        return HealthCheck("seeds", Level.FAIL, text, REFUSED_TODO if refused else NO_ANSWER_TODO)
    if errors:
        return HealthCheck("seeds", Level.WARN, text, "one is enough to join; check the others")
    return ok("seeds", f"{', '.join(seeds)} answered")


def _reachable(
    settings: Settings, address: str, answers: dict[str, DialBackAnswer], relays: Sequence[str]
) -> HealthCheck:
    name, network = "reachable", settings.network
    if not answers:
        return HealthCheck(name, Level.WAITING, "not checked: no seed has answered")
    if network.reach == "relay" or (network.reach == "auto" and proxy_of(network)):
        if relays:
            return ok(name, f"others will connect through the relay {relays[0]}")
        return HealthCheck(name, Level.FAIL, "no member offers a relay, which this site needs", NO_RELAY)
    if reached := [seed for seed, answer in answers.items() if answer.reached]:
        return ok(name, f"{reached[0]} reached this machine at {address}")
    seed, answer = next(iter(answers.items()))
    text = f"{seed} cannot reach you at {address} ({answer.reason})"
    if relays and network.reach == "auto":
        return ok(name, f"others will connect through the relay {relays[0]}: {text}")
    return HealthCheck(name, Level.FAIL, text, WHAT_TO_DO)


async def _relays(settings: Settings, dialer: Dialer, seeds: Iterable[str]) -> list[str]:
    """The relays of the settings, or the members that offer a relay."""
    if settings.network.relays:
        return list(settings.network.relays)
    for seed in seeds:
        with suppress(PeerError, RpcError):
            link = await dialer.dial(seed, TIMEOUT)
            try:
                call = membership_pb2_grpc.MembershipStub(link.channel).List
                reply = await call(membership_pb2.ListRequest(), timeout=TIMEOUT)
                return [m.address for m in reply.members if m.offers_relay and m.state == PRESENT]
            finally:
                await link.close()
    return []


async def _version(dialer: Dialer, seed: str) -> str:
    """The version of a node; empty if unknown, because a bootstrap has no status."""
    try:
        link = await dialer.dial(seed, TIMEOUT)
        try:
            status = await PeerStub(link.channel).status(peer_pb2.StatusRequest(), timeout=TIMEOUT)
            return str(json.loads(status.json).get("version", ""))
        finally:
            await link.close()
    except Exception:
        return ""


def _task(settings: Settings) -> list[HealthCheck]:
    """Calls the task, which imports torch."""
    from pfl_node.learning.build import learner_at

    task = settings.task
    place = Place(0 if task.index == "slot" else task.index, task.nodes, settings.seed, node_id="doctor")
    try:
        learner = learner_at(settings, place)
    except Exception as error:
        found = explain(error)
        if found.bug:
            raise
        return [HealthCheck("data", Level.FAIL, found.line, "see docs/write-a-task.md")]
    return [data_check(learner.samples), device_check(settings.device), _pace(settings, learner.layout.nbytes)]


def _pace(settings: Settings, model: int) -> HealthCheck:
    every = settings.round.every
    if every is None:
        text = "rounds follow each other without a pause"
        return HealthCheck("pace", Level.WARN, text, "set round.every, for example 10m, at all sites")
    peers = max(1, len(settings.peer_seed), settings.start.peers)  # a bootstrap is one seed for any number
    return traffic_check(2 * model * peers * DAY / every, f"a round every {span(every)}")


def port_is_taken(listen: str) -> bool:
    """Whether something listens there already, probably the node itself."""
    host, port = parse_address(listen, what="listen", any_port=True)
    if not port:
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
