"""SendModel against the fastest raw grpc.aio transfer of the same bytes. Two processes, interleaved runs, medians.

    python -m benchmarks.wire [--loop asyncio] [--quick]

Raw: from a vector in one process to a buffer in the other, without serializer and checks; the best of one message
and chunks of 256 KiB, 512 KiB and 1 MiB. "Discarded" sends prepared bytes that the receiver drops. Memory and the
longest pause of the event loops are measured in separate runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop

from benchmarks.report import show
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.client import PeerClient
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.server import PeerService

SIZES = {0.35: (25, 8), 1.0: (25, 8), 10.0: (15, 3), 50.0: (11, 1)}  # MB of model: turns, and runs in a turn
WARM = 1.0  # MB; size of the models sent before memory is measured
CHUNKS = {"one message": 0, "256 KiB": 1 << 18, "512 KiB": 1 << 19, "1 MiB": 1 << 20}
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
NOTES = (
    "aims: ratio >= 0.85; memory (peak, in models) <= 2.2; the event loop never blocked for 50 ms",
    "out: the sender, in: the receiver; to discarded: raw with prepared bytes that the receiver drops",
)


def layout_of(megabytes: float) -> Layout:
    numbers = int(megabytes * 1e6 / 4)
    return Layout((Entry("core", (numbers - 10,)),), (Entry("head", (10,)),))


# -- what is measured inside a process -------------------------------------------------------------------------


class Gauge:
    """Peak memory above the start, and the longest pause of the event loop."""

    TICK = 0.001

    def __init__(self) -> None:
        self.base = _memory("VmRSS")
        self.pause = 0.0
        self.ticking: asyncio.Task[None] | None = None

    def watch(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        self.pause = 0.0
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    def report(self) -> dict[str, float]:
        if self.ticking is not None:
            self.ticking.cancel()
        return {"peak": _memory("VmHWM") - self.base, "pause_ms": self.pause * 1e3}

    async def _tick(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(self.TICK)
            self.pause = max(self.pause, time.perf_counter() - before - self.TICK)


def _memory(field: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(field))
    return int(line.split()[1]) * 1024


# -- the receiving process -------------------------------------------------------------------------------------


class Sink:
    """A host that accepts every model of the current layout and drops it."""

    def __init__(self) -> None:
        self.now = layout_of(1.0)

    def layout(self, part: Part) -> Layout:
        return self.now.of(part)

    def admit(self, call: str, envelope: Envelope) -> None: ...
    def cancel(self, call: str, envelope: Envelope, *, resumes: bool = False) -> None: ...
    def deliver(self, offer: Offer) -> None: ...
    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None: ...

    async def evaluate(self, offer: Offer) -> Eval:
        raise NotImplementedError

    def serve(self, part: Part) -> Offer:
        raise NotImplementedError

    async def compress(self, offer: Offer, to: PeerId, *, resumes: bool) -> Offer:
        raise NotImplementedError

    def status(self) -> pb.Status:
        return pb.Status()


async def serve() -> None:
    sink = Sink()
    gauges: list[Gauge] = []

    async def kept(_: object, context: Any) -> bytes:
        """A single message is already a buffer; chunks are copied into one."""
        first: bytes = await context.read()
        if len(first) == sink.now.nbytes:
            return b""
        buffer = memoryview(np.empty(sink.now.nbytes, np.uint8).data)
        at, message = 0, first
        while isinstance(message, bytes):
            buffer[at : at + len(message)] = message
            at += len(message)
            message = await context.read()
        return b""

    async def discarded(_: object, context: Any) -> bytes:
        while isinstance(await context.read(), bytes):
            pass
        return b""

    async def control(order: bytes, _: Any) -> bytes:
        match json.loads(order):
            case ["size", float(megabytes)]:
                sink.now = layout_of(megabytes)
            case ["begin"]:
                gauges.append(Gauge())
            case ["watch"]:
                gauges[-1].watch()
            case ["report"]:
                return json.dumps(gauges[-1].report()).encode()
        return b"{}"

    endpoint = Endpoint()
    PeerService(sink).attach(endpoint)
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    server = grpc.aio.server(options=UNLIMITED)
    handlers: dict[str, Any] = {
        "Kept": grpc.stream_unary_rpc_method_handler(kept),
        "Discarded": grpc.stream_unary_rpc_method_handler(discarded),
        "Control": grpc.unary_unary_rpc_method_handler(control),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(endpoint.address, f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the other process closes the pipe
    await server.stop(0)
    await endpoint.stop(0)


@asynccontextmanager
async def receiver(loop: str) -> AsyncIterator[tuple[str, str]]:
    """The addresses of our service and of the raw one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.wire", "--serve", "--loop", loop),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        ours, raw = (await process.stdout.readline()).decode().split()
        yield ours, raw
    finally:
        process.stdin.close()
        await process.wait()


# -- the sending process ---------------------------------------------------------------------------------------

Way = Callable[[], Awaitable[object]]


class Bench:
    def __init__(self, client: PeerClient, address: str, channel: Any) -> None:
        self.client = client
        self.address = address
        self.control = channel.unary_unary("/bench/Control")
        self.channel = channel

    async def order(self, *words: object) -> dict[str, float]:
        reply: dict[str, float] = json.loads(await self.control(json.dumps(words).encode()))
        return reply

    def ours(self, model: Model) -> Way:
        return lambda: self.client.send(PeerId("sink"), self.address, model)

    def raw(self, vector: memoryview, chunk: int) -> Way:
        one, many = self.channel.unary_unary("/bench/Kept"), self.channel.stream_unary("/bench/Kept")
        if not chunk:
            return lambda: one(bytes(vector))
        return lambda: stream(many(), (bytes(vector[i : i + chunk]) for i in range(0, len(vector), chunk)))

    def discarded(self, vector: memoryview, chunk: int) -> Way:
        one, many = self.channel.unary_unary("/bench/Discarded"), self.channel.stream_unary("/bench/Discarded")
        ready = [
            bytes(vector[i : i + (chunk or len(vector))]) for i in range(0, len(vector), chunk or len(vector))
        ]
        return lambda: stream(many(), ready) if chunk else one(ready[0])

    async def timed(self, megabytes: float, turns: int, runs: int) -> dict[str, list[float]]:
        """Seconds of one transfer, by method and turn: the median of a few runs, so that no method has a warmer
        cache than the others. The first turn is discarded."""
        await self.order("size", megabytes)
        model = made(megabytes)
        vector = model.vector.data.cast("B")
        ways = {name: self.raw(vector, chunk) for name, chunk in CHUNKS.items()}
        ways |= {"ours": self.ours(model), "discarded": self.discarded(vector, 0 if megabytes <= 1 else 1 << 20)}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(turns + 1):
            for name, way in ways.items():
                seconds[name].append(statistics.median([await clocked(way) for _ in range(runs)]))
        return {name: times[1:] for name, times in seconds.items()}

    async def watched(self, megabytes: float, gauge: Gauge, runs: int = 5) -> dict[str, float]:
        """Peak memory above that after transfers of small models, and the longest pause, on both sides."""
        await self.order("size", megabytes)
        await self.order("watch")
        gauge.watch()
        model = await asyncio.to_thread(made, megabytes)
        for _ in range(runs):
            await self.ours(model)()
        here, there = gauge.report(), await self.order("report")
        return {
            "memory out": round(here["peak"] / model.nbytes, 2),
            "in": round(there["peak"] / model.nbytes, 2),
            "pause ms out": round(here["pause_ms"], 1),
            "in ": round(there["pause_ms"], 1),
        }


async def clocked(way: Way) -> float:
    start = time.perf_counter()
    await way()
    return time.perf_counter() - start


async def stream(call: Any, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await call.write(piece)
    await call.done_writing()
    await call


def made(megabytes: float) -> Model:
    layout = layout_of(megabytes)
    return Model(layout, np.random.default_rng(0).standard_normal(layout.size, dtype=np.float32))


async def measure(loop: str, *, quick: bool) -> list[dict[str, Any]]:
    rows = []
    client = PeerClient(PeerId("bench"), "bench", WireSettings())
    async with receiver(loop) as (ours, raw), grpc.aio.insecure_channel(raw, options=UNLIMITED) as channel:
        bench = Bench(client, ours, channel)
        await bench.order("size", WARM)
        for _ in range(20):
            await bench.ours(made(WARM))()
        await bench.order("begin")
        gauge = Gauge()
        watched = {megabytes: await bench.watched(megabytes, gauge) for megabytes in SIZES}
        for megabytes, (turns, runs) in SIZES.items():
            seconds = await bench.timed(megabytes, 3 if quick else turns, runs)
            rows.append(row_of(megabytes, seconds) | watched[megabytes])
        await client.close()
    return rows


def row_of(megabytes: float, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Ratios are computed within each turn, because the load of the machine changes between turns."""

    def against(name: str) -> float:
        return statistics.median(
            theirs / ours for theirs, ours in zip(seconds[name], seconds["ours"], strict=True)
        )

    best = min(CHUNKS, key=against)
    rate = {name: megabytes / statistics.median(times) for name, times in seconds.items()}
    return {
        "MB": megabytes,
        "ours MB/s": round(rate["ours"]),
        "raw MB/s": round(rate[best]),
        "best raw": best,
        "ratio": round(against(best), 2),
        "to discarded": round(against("discarded"), 2),
    }


def run(main: Coroutine[Any, Any, Any], loop: str) -> Any:
    return uvloop.run(main) if loop == "uvloop" else asyncio.run(main)


def main() -> None:
    parser = argparse.ArgumentParser(description="SendModel against raw grpc.aio")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        run(serve(), given.loop)
        return
    show("wire: SendModel against raw grpc.aio", run(measure(given.loop, quick=given.quick), given.loop), NOTES)


if __name__ == "__main__":
    main()
