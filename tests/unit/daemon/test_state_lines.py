"""The two lines that a node prints on a console that many share."""

from __future__ import annotations

from pfl_node.daemon.state_lines import finished


def test_the_end_says_how_far_and_how_good() -> None:
    row = {"how": "done", "round": 20, "test_accuracy": 0.931}
    assert finished("node-7", row) == "node-7 is done after 20 rounds, test accuracy 93.1 %"


def test_without_accuracy_the_end_says_how_far() -> None:
    assert finished("node-7", {"how": "stopped", "round": 3}) == "node-7 is stopped after 3 rounds"
