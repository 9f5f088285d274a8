"""Who is asked first."""

from __future__ import annotations

from pfl_node.ops.swarm_view import in_turn
from pfl_node.types import PeerId


def test_those_not_heard_of_for_longest_are_asked_first_so_that_nobody_is_left_out_for_ever() -> None:
    others = {PeerId(name): f"{name}:1" for name in ("ann", "bob", "cid", "dan")}
    heard: dict[str, float] = {}
    order = []
    for now in range(6):  # there is time for two of them only
        for peer, _ in in_turn(others, heard)[:2]:
            heard[peer] = now
            order.append(peer)
    assert order == ["ann", "bob", "cid", "dan"] * 3
