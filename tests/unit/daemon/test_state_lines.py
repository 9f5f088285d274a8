"""The two lines that a node prints on a console that many share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pfl_node.daemon.state_lines import StateLines, finished
from pfl_node.ops.events import Hub


def test_the_end_says_how_far_and_how_good() -> None:
    row = {"how": "done", "round": 20, "test_accuracy": 0.931}
    assert finished("node-7", row) == "node-7 is done after 20 rounds, test accuracy 93.1 %"


def test_without_accuracy_the_end_says_how_far() -> None:
    assert finished("node-7", {"how": "stopped", "round": 3}) == "node-7 is stopped after 3 rounds"


def test_a_node_that_is_stopped_says_nothing_but_one_that_failed_does() -> None:
    hub, lines = Hub(), list[str]()
    node: Any = SimpleNamespace(name="node-7", node_observer=SimpleNamespace(hub=hub))
    StateLines(node, lines.append)
    for how in ("stopped", "failed", "done"):
        hub.tell("finished", {"how": how, "round": 3})
    assert lines == ["node-7 is failed after 3 rounds", "node-7 is done after 3 rounds"]
