"""A process that lets the nodes of a swarm learn alone, in the simulator. How it is talked to: `pipes.py`."""

from __future__ import annotations

import json
import sys
import threading

from pfl_node.swarm.process_pipes import ParentPipe, leave


def main() -> int:
    parent = ParentPipe()
    order = parent.order()
    if order is None:
        return 0
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    try:
        _simulate(order, parent)
    except Exception as error:
        return parent.failed(error)
    return 0


def _simulate(order: str, parent: ParentPipe) -> None:
    from pfl_node.settings import Settings
    from pfl_node.sim import simulate

    raw = json.loads(order)
    summary = simulate(
        Settings.model_validate(raw["settings"]),
        nodes=raw["nodes"],
        progress=lambda p: parent.tell("progress", {"rounds": p.rounds_done}),
    )
    parent.tell("summary", {"summary": summary.as_dict()})


def _leave_with_the_parent() -> None:
    sys.stdin.read()
    leave()


if __name__ == "__main__":
    sys.exit(main())
