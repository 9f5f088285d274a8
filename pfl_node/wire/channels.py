"""One line to each peer: a channel and the calls on it, kept while it is good, and dialled anew when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pfl_node.errors import Refused
from pfl_node.types import PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.dialer import Dialer, Link

METHOD = "/pfl.v1.Peer/"


class PeerChannel:
    """The channel to one peer and the calls on it. ModelChunks stay bytes: the codec reads and writes them."""

    def __init__(self, address: str, link: Link) -> None:
        self.address = address
        self.link = link
        self.channel = link.channel
        self.calls = 0  # under way
        self.retired = False
        replies = {"SendModel": pb.Receipt.FromString, "EvaluateModel": pb.Score.FromString}
        requests: dict[str, Any] = {
            "GetHead": pb.HeadRequest,
            "GetModel": pb.ModelRequest,
            "GetPredictions": pb.PredictionsRequest,
        }
        # One message and a stream of one are the same on the wire; the former takes gRPC fewer batches.
        self.whole = {
            call: self.channel.unary_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.chunks = {
            call: self.channel.stream_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.status = self._ask("GetStatus", pb.StatusRequest, pb.Status)
        self.history = self._ask("GetHistory", pb.HistoryRequest, pb.History)
        self.get = {
            call: self.channel.unary_stream(METHOD + call, request_serializer=request.SerializeToString)
            for call, request in requests.items()
        }

    def _ask(self, call: str, request: Any, reply: Any) -> Any:
        return self.channel.unary_unary(
            METHOD + call, request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


class ChannelPool:
    """By peer. Those who call at the same time share a line, and the attempt to make one."""

    def __init__(self, dialer: Dialer, connect_timeout: float) -> None:
        self._dialer = dialer
        self._connect_timeout = connect_timeout
        self._lines: dict[PeerId, PeerChannel] = {}
        self._dialling: dict[tuple[PeerId, str], asyncio.Task[PeerChannel]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def to(self, peer: PeerId, address: str) -> AsyncIterator[PeerChannel]:
        """For one call. Raises PeerGone or Refused when TLS shows that there must be none."""
        line = await self._line(peer, address)
        try:
            self._dialer.permit(line.link)
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        line.calls += 1
        try:
            yield line
        finally:
            line.calls -= 1
            if line.retired and not line.calls:
                self._hang_up(line)

    def forget(self, peer: PeerId) -> None:
        """Close the channel to a peer that is dead or has moved; calls under way end with PeerGone."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._hang_up(line)

    async def close(self) -> None:
        for dialling in self._dialling.values():
            dialling.cancel()
        for peer in list(self._lines):
            self.forget(peer)
        await asyncio.gather(*self._closing)

    async def _line(self, peer: PeerId, address: str) -> PeerChannel:
        line = self._lines.get(peer)
        if line is not None and line.address != address:
            self.forget(peer)
            line = None
        if line is not None and self._dialer.usable(line.link):
            return line
        if line is not None:
            self._retire(peer, line)
        if not self._dialer.secure:
            return self._keep(peer, address, self._dialer.plain(address, self._connect_timeout))
        dialling = self._dialling.get((peer, address))
        if dialling is None:
            dialling = self._dialling[peer, address] = asyncio.create_task(self._dial(peer, address))
            dialling.add_done_callback(lambda done: self._dialled(peer, address, done))
        return await asyncio.shield(dialling)

    async def _dial(self, peer: PeerId, address: str) -> PeerChannel:
        return self._keep(peer, address, await self._dialer.dial(address, self._connect_timeout, expect=peer))

    def _dialled(self, peer: PeerId, address: str, done: asyncio.Task[PeerChannel]) -> None:
        self._dialling.pop((peer, address), None)
        if not done.cancelled():
            done.exception()  # whoever waited has it; nobody may have

    def _keep(self, peer: PeerId, address: str, link: Link) -> PeerChannel:
        line = self._lines[peer] = PeerChannel(address, link)
        return line

    def _retire(self, peer: PeerId, line: PeerChannel) -> None:
        """The calls under way may end; new ones go another way."""
        line.retired = True
        if self._lines.get(peer) is line:
            del self._lines[peer]
        if not line.calls:
            self._hang_up(line)

    def _hang_up(self, line: PeerChannel) -> None:
        task = asyncio.get_running_loop().create_task(line.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
