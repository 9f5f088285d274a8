"""One line when a node has joined and one when it is done, for a console on which many nodes print."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_node.daemon.assemble import DaemonNode
    from pfl_node.ops.events import NodeEvent


class StateLines:
    """Used instead of the announcement of the address, where only warnings are logged for people."""

    def __init__(self, node: DaemonNode, say: Callable[[str], None]) -> None:
        self._node = node
        self._say = say
        node.node_observer.hub.listen(self._hear)

    def _hear(self, event: NodeEvent) -> None:
        if event.kind == "started":
            others = len(self._node.peers())
            self._say(f"{self._node.name} joined at {self._node.address}; it sees {others} other nodes")
        elif event.kind == "finished" and event.data["how"] != "stopped":  # stopping many prints enough lines
            self._say(finished(self._node.name, event.data))


def finished(name: str, row: Any) -> str:
    rounds, accuracy = row["round"], row.get("test_accuracy")
    score = f", test accuracy {100 * accuracy:.1f} %" if accuracy is not None else ""
    return f"{name} is {row['how']} after {rounds} rounds{score}"
