"""The router of the lab, a process of its own: packets from one host's TUN device to another's, as the sky says.

It is told what to do by lines of JSON on stdin, and answers each with one on stdout.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import signal
import sys
from collections import Counter
from itertools import count
from typing import Any

from tests.netns.link_conditions import Sky, Weather

BATCH = 64  # packets of one host at a time, so that none starves the others
OPERATOR = "operator"  # who measures: its packets are never late, lost or stopped


class Router:
    """`files`: the device of each host; `names`: who has which address."""

    def __init__(self, files: dict[str, int], names: dict[bytes, str], seed: int) -> None:
        self.sky = Sky(seed)
        self.figures: Counter[str] = Counter()
        self._files = files
        self._names = names
        self._due: list[tuple[float, int, int, bytes]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        for name, file in files.items():
            self._loop.add_reader(file, self._readable, name, file)

    def _readable(self, name: str, file: int) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(file, 65536)
            except BlockingIOError:
                return
            except OSError:  # the device is down
                self._loop.remove_reader(file)
                return
            self._route(name, packet)

    def _route(self, source: str, packet: bytes) -> None:
        """IPv4 only; a host speaks for itself only."""
        to = self._names.get(packet[16:20])
        if packet[0] >> 4 != 4 or to is None or self._names.get(packet[12:16]) != source:
            self.figures["other"] += 1
            return
        late = 0.0 if OPERATOR in (source, to) else self.sky.fate(source, to)
        if late is None:
            self.figures["lost"] += 1
        elif late == 0:
            self._put(self._files[to], packet)
        else:
            heapq.heappush(self._due, (self._loop.time() + late, next(self._order), self._files[to], packet))
            self._arm()

    def _arm(self) -> None:
        if self._due and (self._timer is None or self._timer.when() > self._due[0][0]):
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due[0][0], self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.0005
        while self._due and self._due[0][0] <= now:
            _, _, file, packet = heapq.heappop(self._due)
            self._put(file, packet)
        self._arm()

    def _put(self, file: int, packet: bytes) -> None:
        try:
            os.write(file, packet)
            self.figures["routed"] += 1
        except OSError:  # the host's queue is full, or it is down
            self.figures["dropped"] += 1

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order.pop("do"):
            case "weather":
                self.sky.everywhere = Weather(**order)
            case "split":
                self.sky.split(order["groups"])
            case "heal":
                self.sky.heal()
            case "figures":
                return dict(self.figures)
            case unknown:
                return {"error": f"no such order: {unknown}"}
        return {}


async def main(told: dict[str, Any]) -> None:
    names = {bytes.fromhex(address): name for address, name in told["names"].items()}
    router = Router(told["files"], names, told["seed"])
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print(json.dumps({"ready": True}), flush=True)
    while line := await orders.readline():
        print(json.dumps(router.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its owner does
    asyncio.run(main(json.loads(sys.argv[1])))
