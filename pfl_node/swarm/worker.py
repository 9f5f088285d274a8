"""A worker process of a swarm: hosts some of its nodes in one event loop with one trainer.

Reads its spec as the first line of stdin and writes one JSON line per event to stdout. More on stdin, or its end,
means stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from pfl_node.errors import PflError
from pfl_node.learning.trainer import Trainer
from pfl_node.node import Node
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.status import details_of
from pfl_node.store.home import Home
from pfl_node.swarm.spec import WorkerSpec


def say(event: str, data: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **data}, default=str) + "\n")
    sys.stdout.flush()


async def host(spec: WorkerSpec) -> None:
    trainer = Trainer()
    await trainer.do(lambda _: _import_torch())
    say("imported", {"cpu": time.process_time()})
    nodes = [_make(spec, index, trainer) for index in spec.indices]
    _stop_with_parent(nodes)
    try:
        for node in nodes:
            await node.start()
        async with asyncio.TaskGroup() as group:
            for index, node in zip(spec.indices, nodes, strict=True):
                group.create_task(_run(index, node))
        say("worked", {"cpu": time.process_time()})
    finally:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        for node in nodes:
            await node.close()
        await trainer.close()


def _import_torch() -> None:
    from pfl_node.learning import learner  # noqa: F401


def _make(spec: WorkerSpec, index: int, trainer: Trainer) -> Node:
    settings = spec.node_settings(index)

    def observe(event: str, data: Mapping[str, Any]) -> None:
        say(event, {"index": index, **data})

    return Node(settings, Home.open(settings.data_dir), trainer, observe)


async def _run(index: int, node: Node) -> None:
    how = await node.run()
    cluster = node.chronicle.learner.cluster if node.chronicle else None
    say("result", {"index": index, "id": node.id, "how": how, "cluster": cluster, **details_of(node)})


def _stop_with_parent(nodes: list[Node]) -> None:
    """Anything more on stdin means stop; its end means that the parent is gone."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

    def heard() -> None:
        os.read(fd, 1024)
        loop.remove_reader(fd)
        for node in nodes:
            node.stop()

    loop.add_reader(fd, heard)


def main() -> int:
    spec = WorkerSpec.load(sys.stdin.readline())
    configure_logs(spec.settings.log)
    code = 0
    try:
        run_loop(host(spec))
    except* PflError as group:
        say("failed", {"error": "; ".join(sorted({str(e) for e in _leaves(group)}))})
        code = 2
    except* Exception:
        say("failed", {"error": traceback.format_exc()})
        code = 1
    return code


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
