"""`python -m tests.attacks.member_flood ADDRESS RUN MODEL CALL COUNT`: COUNT members join the node at ADDRESS and
then repeat a call without a pause, a few at a time, until the process is ended.

MODEL is a file with a message of EvaluateModel or SendModel in which the sender is SENDER.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import uvloop

from pfl_node.membership.member import Member
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.endpoint import Endpoint, channel_options
from pfl_node.wire.membership_service import attach_membership

SENDER = "member-00"
AT_ONCE = 2  # calls of one member

Request = Callable[[Any], Any]


async def joined(address: str, run: str, number: int) -> str:
    """The id of a new member that answers probes."""
    me = Member(f"member-{number:02}", f"attacker-{number}", address="", role="node", run=run, incarnation=1)
    endpoint = Endpoint()
    membership = attach_membership(endpoint, me, SwimConfig(), rng=Random(number))
    await endpoint.bind("127.0.0.1:0", membership.bind)
    await endpoint.start()
    await membership.start([address], advertise=endpoint.address)
    await endpoint.serving(True)
    return me.id


def request(call: str, run: str, sender: str, model: bytes) -> Request:
    if call in ("EvaluateModel", "SendModel"):
        message = model.replace(SENDER.encode(), sender.encode())
        return lambda channel: channel.stream_unary(f"/pfl.v1.Peer/{call}")(iter([message]), timeout=60)
    if call == "GetStatus":
        asked = pb.StatusRequest().SerializeToString()
        return lambda channel: channel.unary_unary("/pfl.v1.Peer/GetStatus")(asked, timeout=60)
    fetched = pb.ModelRequest(sender=sender, run=run).SerializeToString()
    return lambda channel: _all(channel.unary_stream("/pfl.v1.Peer/GetModel")(fetched, timeout=60))


async def _all(stream: Any) -> None:
    async for _ in stream:
        pass


async def repeat(channel: Any, make: Request) -> None:
    while True:
        with suppress(grpc.aio.AioRpcError):
            await make(channel)


async def main(address: str, run: str, model: bytes, call: str, count: int) -> None:
    senders = [await joined(address, run, number) for number in range(count)]
    print("joined", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            channel = grpc.aio.insecure_channel(address, options=[*channel_options(), ("x", sender)])
            for _ in range(AT_ONCE):
                tasks.create_task(repeat(channel, request(call, run, sender, model)))


if __name__ == "__main__":
    _, where, its_run, file, what, members = sys.argv
    with suppress(KeyboardInterrupt):
        uvloop.run(main(where, its_run, Path(file).read_bytes(), what, int(members)))
