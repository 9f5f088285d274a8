"""`python -m tests.attacks.scoring_flood ADDRESS FILE…`: each file is one EvaluateModel call. Repeats all, two
at a time, until the process is ended."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

PAUSE = 0.1  # seconds after a refusal


async def repeat(call: Any, message: bytes) -> None:
    while True:
        try:
            await call(iter([message]), timeout=60)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(PAUSE)


async def main(address: str, messages: list[bytes]) -> None:
    channel: Any = grpc.aio.insecure_channel(address)  # its published types know no calls with bytes
    async with channel:
        call = channel.stream_unary("/pfl.v1.Peer/EvaluateModel")
        await asyncio.gather(*(repeat(call, message) for message in messages for _ in range(2)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], [Path(file).read_bytes() for file in sys.argv[2:]]))
