"""SendModel against raw grpc.aio that moves the same bytes the best way. Two processes, runs interleaved, medians.

    python -m benchmarks.wire [--loop asyncio] [--quick]

Raw: from a vector in one process to a buffer in the other, no serializer, no check; the best of one message and
chunks of 256 KiB, 512 KiB and 1 MiB counts. "Discarded" is the same with bytes that lie ready and are thrown away
on arrival. Memory and the longest pause of the event loops are measured in runs of their own.
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
from rich.console import Console
from rich.table import Table

from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Eval, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import Envelope
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.server import PeerService

SIZES = {0.35: (12, 8), 1.0: (12, 8), 10.0: (9, 3), 50.0: (9, 1)}  # MB of model: turns, and runs in a turn
CHUNKS = {"one message": 0, "256 KiB": 1 << 18, "512 KiB": 1 << 19, "1 MiB": 1 << 20}
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
RESULTS = Path(__file__).parent / "results" / "wire.json"
AIMS = {"ratio": 0.85, "memory": 2.2, "pause_ms": 50.0}


def layout_of(megabytes: float) -> Layout:
    numbers = int(megabytes * 1e6 / 4)
    return Layout((Entry("core", (numbers - 10,)),), (Entry("head", (10,)),))


# -- what is measured inside a process -------------------------------------------------------------------------


class Gauge:
    """Peak memory beyond that at the beginning, and the longest time that the event loop did not come round."""

    TICK = 0.001

    def __init__(self) -> None:
        self.base = _memory("VmRSS")
        self.pause = 0.0
        self.ticking: asyncio.Task[None] | None = None

    def watch(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
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
    """A host that takes every model of the current layout and drops it."""

    def __init__(self) -> None:
        self.now = layout_of(1.0)

    def layout(self, part: Part) -> Layout:
        return self.now.of(part)

    def admit(self, call: str, envelope: Envelope) -> None: ...
    def cancel(self, call: str, envelope: Envelope) -> None: ...
    def deliver(self, offer: Offer) -> None: ...
    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None: ...

    async def evaluate(self, offer: Offer) -> Eval:
        raise NotImplementedError

    def serve(self, part: Part) -> Offer:
        raise NotImplementedError

    def status(self) -> pb.Status:
        return pb.Status()


async def serve() -> None:
    sink = Sink()
    gauges: list[Gauge] = []

    async def kept(_: object, context: Any) -> bytes:
        """One message is a buffer already; chunks go into one."""
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
    await asyncio.to_thread(sys.stdin.read)  # until the other process lets go
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

    async def timed(self, megabytes: float, turns: int, runs: int) -> dict[str, float]:
        """Seconds of one transfer, by way: the median of all runs but those of the first turn. Each way has a few
        runs before it is the next one's turn, so that none finds its code in the cache more often than others."""
        await self.order("size", megabytes)
        model = made(megabytes)
        vector = model.vector.data.cast("B")
        ways: dict[str, Way] = {"ours": self.ours(model)}
        for name, chunk in CHUNKS.items():
            ways[name] = self.raw(vector, chunk)
            ways[f"{name}, discarded"] = self.discarded(vector, chunk)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns + 1):
            for name, way in ways.items():
                for _ in range(runs):
                    start = time.perf_counter()
                    await way()
                    if turn:
                        seconds[name].append(time.perf_counter() - start)
        return {name: statistics.median(times) for name, times in seconds.items()}

    async def watched(self, megabytes: float, gauge: Gauge, runs: int = 5) -> dict[str, float]:
        """Peak memory beyond the process before its first model, and the longest pause of the loop, on both sides."""
        await self.order("size", megabytes)
        await self.order("watch")
        gauge.watch()
        model = await asyncio.to_thread(made, megabytes)
        for _ in range(runs):
            await self.ours(model)()
        here, there = gauge.report(), await self.order("report")
        return {
            "memory_sender": here["peak"] / model.nbytes,
            "memory_receiver": there["peak"] / model.nbytes,
            "pause_ms_sender": here["pause_ms"],
            "pause_ms_receiver": there["pause_ms"],
        }


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
        await bench.order("size", 0.01)
        await bench.ours(made(0.01))()
        await bench.order("begin")
        gauge = Gauge()
        watched = {megabytes: await bench.watched(megabytes, gauge) for megabytes in SIZES}
        for megabytes, (turns, runs) in SIZES.items():
            seconds = await bench.timed(megabytes, 3 if quick else turns, runs)
            best = min(CHUNKS, key=lambda name: seconds[name])
            discarded = min(seconds[f"{name}, discarded"] for name in CHUNKS)
            row = {
                "megabytes": megabytes,
                "best_raw": best,
                "ratio": seconds[best] / seconds["ours"],
                "ratio_discarded": discarded / seconds["ours"],
                "megabytes_per_second": {name: megabytes / s for name, s in seconds.items()},
            }
            rows.append(row | watched[megabytes])
        await client.close()
    return rows


# -- telling ---------------------------------------------------------------------------------------------------


def show(rows: list[dict[str, Any]], command: str) -> None:
    table = Table(title=f"SendModel against raw grpc.aio\n{command}", caption=f"aims: {AIMS}")
    for column in ("MB", "ours, MB/s", "raw, MB/s", "ratio", "discarded", "memory out/in", "pause out/in, ms"):
        table.add_column(column, justify="right")
    for row in rows:
        rate = row["megabytes_per_second"]
        table.add_row(
            f"{row['megabytes']:g}",
            f"{rate['ours']:.0f}",
            f"{rate[row['best_raw']]:.0f} ({row['best_raw']})",
            f"{row['ratio']:.2f}",
            f"{row['ratio_discarded']:.2f}",
            f"{row['memory_sender']:.2f} / {row['memory_receiver']:.2f}",
            f"{row['pause_ms_sender']:.1f} / {row['pause_ms_receiver']:.1f}",
        )
    Console().print(table)


def run(main: Coroutine[Any, Any, Any], loop: str) -> Any:
    return uvloop.run(main) if loop == "uvloop" else asyncio.run(main)


def main() -> None:
    parser = argparse.ArgumentParser(description="SendModel against raw grpc.aio")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--quick", action="store_true", help="few runs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        run(serve(), given.loop)
        return
    command = " ".join(["python -m benchmarks.wire", *sys.argv[1:]])
    rows = run(measure(given.loop, quick=given.quick), given.loop)
    show(rows, command)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"command": command, "aims": AIMS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
