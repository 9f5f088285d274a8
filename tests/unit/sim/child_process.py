"""A child process for tests whose first line of input selects its behaviour."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from pfl_node.errors import PflError, TaskError
from pfl_node.sim.worker_process import ParentPipe, leave


async def until_stopped(parent: ParentPipe) -> None:
    stop = asyncio.Event()
    parent.on_stop(stop.set)
    parent.send("ready")
    await stop.wait()
    parent.send("stopped")


def main() -> int:
    parent = ParentPipe()
    order = parent.order()
    if order is None:
        return 0
    match json.loads(order):
        case "answer":
            print("printed by a task")
            print("logged", file=sys.stderr)
            parent.send("answer", text="ä\n", number=1)
        case "wait":
            asyncio.run(until_stopped(parent))
        case "hang":
            parent.send("ready")
            time.sleep(600)
        case "mistake":
            return parent.failed(TaskError("your task"))
        case "failure":
            return parent.failed(PflError("our failure"))
        case "bug":
            return parent.failed(ZeroDivisionError("a bug"))
        case "their bug":
            try:
                print(1 / 0)
            except ZeroDivisionError as error:
                return parent.failed(error)
        case "exit":
            leave(3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
