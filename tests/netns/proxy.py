"""A fault proxy for TCP and UDP, without root: nodes advertise a proxy, and what goes through it can be made to
fail.

What it cannot do: a black hole still takes connections, as the kernel answers for it; only then all is silence.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from typing import Any

from tests.netns.callers import holder
from tests.netns.link_conditions import Sky
from tests.netns.streams import Reader, Stream, Writer, abort

Address = tuple[str, int]
TRIES = 32
BEHIND = "127.77.0.1"  # where a process listens whose proxy has the same port on 127.0.0.1


class Net:
    """Doors, the sky over the ways between them, and who is who."""

    def __init__(self, seed: int = 0) -> None:
        self.sky = Sky(seed)
        self.proxies: dict[str, NodeProxy] = {}
        self.pids: dict[int, str] = {}  # whose connections can be told apart: nodes in processes of their own
        self._stirred = asyncio.Event()

    async def proxy(self, name: str) -> NodeProxy:
        """Open at once; where it leads to is said later."""
        self.proxies[name] = made = NodeProxy(self, name)
        await made.open()
        return made

    def split(self, *groups: Collection[str]) -> None:
        """Nothing goes from one group to another. Connections are told apart by their processes only: those of
        nodes that share one with the proxy are not stopped, but their packets are."""
        self.sky.split(groups)
        self.stir()

    def heal(self) -> None:
        self.sky.heal()
        self.stir()

    def stir(self) -> None:
        """Whoever waits looks again."""
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def stirred(self) -> None:
        await self._stirred.wait()

    def by_packet(self, source: Address) -> str:
        """Members send packets from the port they listen on."""
        return next((proxy.name for proxy in self.proxies.values() if proxy.target == source), "")

    def by_connection(self, source: Address) -> str:
        return (self.pids and holder(source, self.pids)) or ""

    async def close(self) -> None:
        for proxy in self.proxies.values():
            await proxy.close()

    async def __aenter__(self) -> Net:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class NodeProxy:
    """Where others reach one node. `address` is what the node advertises."""

    def __init__(self, net: Net, name: str) -> None:
        self.name = name
        self.port = 0
        self.target: Address | None = None
        self.silent = False
        self.rate: float | None = None  # bytes per second of all connections together, each way
        self.carried = 0  # bytes brought to the node by connections
        self.packets = 0  # brought to it
        self._net = net
        self._wire: Callable[[], None] | None = None  # what happens when `_left` bytes more were brought
        self._left = 0
        self._busy_until = {"in": 0.0, "out": 0.0}
        self._server: asyncio.Server | None = None
        self._datagrams: Datagrams | None = None
        self._streams: dict[asyncio.Task[None], Stream | None] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def behind(self) -> str:
        """Where a process may listen that must be told before it starts."""
        return f"{BEHIND}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._streams)

    def leads_to(self, address: str, pid: int | None = None) -> None:
        """`pid`: of the process there, so that its calls to others are known to be its own."""
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        if pid is not None:
            self._net.pids[pid] = self.name

    # -- faults --------------------------------------------------------------------------------------------

    def silence(self) -> None:
        """From now on nothing goes through, in either direction, and nobody is told."""
        self.silent = True

    def speak(self) -> None:
        """Connections that still stand go on where they stopped; packets were lost."""
        self.silent = False
        self._net.stir()

    def reset(self) -> None:
        """Break all connections; new ones may come."""
        for stream in list(self._streams.values()):
            if stream:
                stream.reset()

    def after(self, nbytes: int, happens: Callable[[], None]) -> asyncio.Event:
        """When connections have brought so many bytes more: for example silence, in the middle of a model. The
        event is set when it has happened."""
        done = asyncio.Event()

        def trip() -> None:
            happens()
            done.set()

        self._left, self._wire = nbytes, trip
        return done

    # -- what goes through ---------------------------------------------------------------------------------

    async def open(self) -> None:
        for _ in range(TRIES):
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            try:
                self._datagrams = await Datagrams.open(self, self.port)
            except OSError:  # the number is taken for UDP
                self._server.close()
                continue
            return
        raise OSError("no port is free for both TCP and UDP")

    async def close(self) -> None:
        if self._server:
            self._server.close()
        if self._datagrams:
            self._datagrams.close()
        self.reset()
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _connected(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task
        self._streams[task] = None
        try:
            await self._lead(reader, writer, task)
        except asyncio.CancelledError:
            abort(writer)
        finally:
            del self._streams[task]

    async def _lead(self, reader: Reader, writer: Writer, task: asyncio.Task[None]) -> None:
        caller = self._net.by_connection(writer.get_extra_info("peername"))
        await self._may_pass(caller, self.name)
        try:
            assert self.target
            far = await asyncio.open_connection(*self.target)
        except (OSError, AssertionError):  # nobody there: neither is anybody here
            abort(writer)
            return

        async def there(data: bytes) -> float:
            await self._may_pass(caller, self.name)
            await self._paced("in", len(data))
            self._brought(len(data))
            await self._may_pass(caller, self.name)
            return self._net.sky.late(caller, self.name)

        async def back(data: bytes) -> float:
            await self._may_pass(self.name, caller)
            await self._paced("out", len(data))
            return self._net.sky.late(self.name, caller)

        self._streams[task] = stream = Stream((reader, writer), far, there, back)
        await stream.run()

    async def _may_pass(self, a: str, b: str) -> None:
        """A stream that is stopped waits, as the kernels of both ends would try again."""
        while self.silent or self._net.sky.parted(a, b):
            await self._net.stirred()

    async def _paced(self, way: str, nbytes: int) -> None:
        if self.rate and nbytes:
            now = asyncio.get_running_loop().time()
            self._busy_until[way] = end = max(now, self._busy_until[way]) + nbytes / self.rate
            await asyncio.sleep(end - now)

    def _brought(self, nbytes: int) -> None:
        self.carried += nbytes
        if self._wire:
            self._left -= nbytes
            if self._left <= 0:
                wire, self._wire = self._wire, None
                wire()

    def packet(self, send: Callable[[], None], a: str, b: str) -> None:
        """A datagram on its way; it may be lost, late, or overtaken."""
        if self.silent or (late := self._net.sky.fate(a, b)) is None:
            return
        if b == self.name:
            self.packets += 1
        if late:
            asyncio.get_running_loop().call_later(late, send)
        else:
            send()

    def caller(self, source: Address) -> str:
        return self._net.by_packet(source)


class Datagrams(asyncio.DatagramProtocol):
    """The proxy's UDP port. Each caller has a socket of its own on the node's side, to which the node answers."""

    def __init__(self, proxy: NodeProxy) -> None:
        self._proxy = proxy
        self._transport: Any = None
        self._callers: dict[Address, Plug] = {}

    @classmethod
    async def open(cls, proxy: NodeProxy, port: int) -> Datagrams:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_datagram_endpoint(lambda: cls(proxy), local_addr=("127.0.0.1", port))
        return made

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Address) -> None:
        proxy = self._proxy
        proxy.packet(lambda: self._bring(data, addr), proxy.caller(addr), proxy.name)

    def answer(self, data: bytes, to: Address) -> None:
        proxy = self._proxy
        proxy.packet(lambda: self._put(data, to), proxy.name, proxy.caller(to))

    def close(self) -> None:
        self._transport.close()
        for plug in self._callers.values():
            asyncio.get_running_loop().remove_reader(plug)
            plug.close()
        self._callers.clear()

    def _bring(self, data: bytes, source: Address) -> None:
        if self._proxy.target and not self._transport.is_closing():
            self._upstream(source).sendto(data, self._proxy.target)

    def _put(self, data: bytes, to: Address) -> None:
        if not self._transport.is_closing():
            self._transport.sendto(data, to)

    def _upstream(self, source: Address) -> Plug:
        plug = self._callers.get(source)
        if plug is None:
            plug = self._callers[source] = Plug(self, source)
        return plug


class Plug(socket.socket):
    """A caller's socket on the node's side. What comes back goes to the caller."""

    def __init__(self, datagrams: Datagrams, source: Address) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_DGRAM)
        self.setblocking(False)
        self.bind(("127.0.0.1", 0))
        self._datagrams, self._source = datagrams, source
        asyncio.get_running_loop().add_reader(self, self._readable)

    def _readable(self) -> None:
        try:
            data = self.recv(1 << 16)
        except OSError:  # the node is gone: its port says so, the silence will, too
            return
        self._datagrams.answer(data, self._source)
