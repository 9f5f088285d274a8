"""Answers DialBack: opens a new connection to the address that the caller advertises, and returns the outcome.

A caller must not be able to make this node dial others: only the address in the caller's own record is dialled,
never one that is valid only on this machine, and without TLS only if the call comes from there or the caller is
known as a member there. The calls are limited per caller and in total. A connection counts only if the caller
itself answers on it: private addresses exist in many networks.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

import grpc

from pfl_node.address import join_address, parse_address
from pfl_node.errors import PeerError, Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.service import Membership
from pfl_node.protocol.rate_limit import RateLimit
from pfl_node.security.caller import CALLER
from pfl_node.security.handshake import CONNECTION_REFUSED, read_certificate
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.membership_pb2_grpc import MembershipStub

CONNECT_TIMEOUT = 2.0  # seconds; the caller's kernel accepts a connection, however busy its process is
ANSWER_TIMEOUT = 6.0  # seconds for the caller's process
LATE = 1.0  # seconds by which this process may notice a timeout late and still blame the caller
PER_CALLER, IN_TOTAL = 10, 240  # calls per minute
AT_ONCE = 32
EVERYONE = PeerId("")

Ip = IPv4Address | IPv6Address


class NotReached(Exception):
    """The message is the reason, for the caller's operator."""


class DialBacks:
    """Without `trust` there is no TLS. `direct`: whether this node dials an address itself, without a proxy."""

    def __init__(
        self, membership: Membership, trust: Trust | None, direct: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._direct = direct
        self._membership = membership
        self._trust = trust
        self._per_caller = RateLimit(PER_CALLER)
        self._in_total = RateLimit(IN_TOTAL)
        self._busy = 0

    async def answer(self, caller: Member, host: str) -> pb.DialBackReply:
        """`host` is the host of the caller's connection. Raises Refused above the limits."""
        if caller.id == self._membership.me.id:  # two private networks may use the same addresses
            raise Refused(Reason.NOT_SERVED, "the caller called itself")
        now = asyncio.get_running_loop().time()
        self._per_caller.take(CALLER.get() or PeerId(host), now)
        self._in_total.take(EVERYONE, now)
        if self._busy >= AT_ONCE:
            raise Refused(Reason.FLOOD, f"{AT_ONCE} connections are being opened for others; try again later")
        if not self._direct(caller.address):
            raise Refused(Reason.NOT_SERVED, "this node uses a proxy and cannot check who is reachable")
        self._busy += 1
        try:
            await self._reach(caller, host)
        except NotReached as failure:
            self._membership.counters["dial_backs_failed"] += 1
            return pb.DialBackReply(reached=False, reason=str(failure), time=time.time())
        finally:
            self._busy -= 1
        self._membership.counters["dial_backs_reached"] += 1
        return pb.DialBackReply(reached=True, time=time.time())

    async def _reach(self, caller: Member, host: str) -> None:
        name, port = parse_address(caller.address)
        found = await _resolve(name, port)
        self._permit(caller, found, host)
        address = join_address(str(found), port)
        await _connect(str(found), port)
        if self._trust is not None:
            await _handshake(address, caller, self._trust)
        else:
            await self._ping(address, caller)

    def _permit(self, caller: Member, found: Ip, host: str) -> None:
        if str(found) == host:
            return
        if found.is_loopback or found.is_unspecified or found.is_link_local or found.is_multicast:
            raise NotReached(f"{found} is not an address that other machines can dial")
        known = self._membership.get(caller.id)
        if self._trust is None and (known is None or known.address != caller.address):
            raise NotReached(f"your calls come from {host}, and no member answers at {caller.address}")

    async def _ping(self, address: str, caller: Member) -> None:
        """Ping the address. Without TLS the id in the answer shows whether the caller answered."""
        ping = packet_codec.pack(Packet(Kind.PING, self._membership.me, 1, caller.id))
        async with grpc.aio.insecure_channel(address, options=channel_options(CONNECT_TIMEOUT)) as channel:
            try:
                reply = await MembershipStub(channel).Ping(ping, timeout=ANSWER_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                raise NotReached(f"a connection, but no answer ({error.code().name.lower()})") from error
        if reply.sender.id != caller.id:
            raise NotReached("another node answers there")


async def _resolve(name: str, port: int) -> Ip:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise NotReached(f"the name {name} cannot be resolved here") from error
    return ip_address(str(found[0][4][0]).partition("%")[0])


async def _connect(host: str, port: int) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError as error:
        if clock() - began > CONNECT_TIMEOUT + LATE:
            raise Refused(Reason.NOT_READY, "this node is too busy to check") from error
        raise NotReached(f"no answer within {CONNECT_TIMEOUT:g} s") from error
    except ConnectionRefusedError as error:
        raise NotReached(CONNECTION_REFUSED) from error
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "")
        raise NotReached("no route" if "UNREACH" in reason else error.strerror or str(error)) from error
    writer.transport.abort()


async def _handshake(address: str, caller: Member, trust: Trust) -> None:
    try:
        certificate = await read_certificate(address, trust.credentials, ANSWER_TIMEOUT)
    except PeerError as error:
        raise NotReached(error.text) from error
    if certificate.id != caller.id:
        raise NotReached("another node answers there")
