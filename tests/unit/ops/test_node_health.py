"""What a node says about its health: only one that exchanges models is green."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.membership.member import Member, Reachability
from pfl_node.membership.packet import Rumor
from pfl_node.membership.reachability import DialBackResult
from pfl_node.ops.exchange import ROUNDS
from tests.unit.ops.test_status import YOU, learns, status

NORTH = Member(YOU, "north", "203.0.113.1:7946", run="default")


def health(path: Path, change: Callable[[DaemonNode], None] | None = None, **settings: Any) -> dict[str, Any]:
    return dict(status(path, change, **settings)[1]["health"])


def meets_north(node: DaemonNode, **facts: Any) -> None:
    node.membership.swim._view.learn(Rumor(replace(NORTH, **facts)), 0.0)
    node.run_members.refresh()


def dialled(*, reached: bool) -> Callable[[DaemonNode], None]:
    def change(node: DaemonNode) -> None:
        result = DialBackResult(YOU, "north", node.address, reached, "" if reached else "no answer", 0.0, 0.0)
        node.monitor.results = {YOU: result}
        node.monitor.state = Reachability.DIRECT if reached else Reachability.UNREACHABLE

    return change


def exchanges(node: DaemonNode) -> None:
    learns(node)
    meets_north(node)
    node.node_observer.exchange.round(received=5, sent=5, failed=False, peers=True, now=time.monotonic())


def does_rounds_without_models(node: DaemonNode) -> None:
    learns(node)
    meets_north(node)
    exchange = node.node_observer.exchange
    exchange.begin(0.0)
    for number in range(ROUNDS):
        exchange.round(received=0, sent=0, failed=True, peers=True, now=100.0 * number)


def test_a_node_that_starts_or_is_alone_waits(tmp_path: Path) -> None:
    assert health(tmp_path)["level"] == "waiting"
    alone = health(tmp_path, learns)
    assert (alone["level"], alone["green"]) == ("waiting", False)
    assert alone["reason"] == "no other node of the run 'default' is known"


def test_a_policy_without_peers_is_green_alone(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        node.state = "training"

    assert health(tmp_path, change, policy={"name": "local"})["green"]


def test_a_node_that_has_just_met_others_waits_for_their_models(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        learns(node)
        meets_north(node)
        dialled(reached=True)(node)

    found = health(tmp_path, change)
    assert (found["level"], found["reason"]) == ("waiting", "no model has arrived yet")


def test_a_node_that_is_reached_receives_and_sends_is_green(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        exchanges(node)
        dialled(reached=True)(node)

    found = health(tmp_path, change)
    assert found["green"], found
    assert [check["level"] for check in found["checks"]] == ["ok"] * 3


def test_a_node_that_nobody_reaches_is_not_green_and_says_what_to_do(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        exchanges(node)
        dialled(reached=False)(node)

    found = health(tmp_path, change)
    assert (found["level"], found["green"]) == ("fail", False)
    assert found["reason"].startswith("north cannot reach it at 127.0.0.1:")
    assert found["todo"] == "open the port, set advertise, or use a relay"
    (row,) = found["peers"]
    assert (row["name"], row["reaches_me"], row["why_not"]) == ("north", False, "no answer")


def test_a_relayed_node_is_reached_through_its_relays(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        exchanges(node)
        dialled(reached=False)(node)
        node.membership.set_reachability(Reachability.RELAYED, ["192.0.2.1:7946"])

    found = health(tmp_path, change)
    assert found["green"]
    assert found["checks"][0]["text"] == "through the relay 192.0.2.1:7946"
    (row,) = found["peers"]
    assert (row["reaches_me"], row["relayed"]) == (True, True)  # it has sent models


def test_the_pace_of_a_node_is_that_of_its_settings(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        exchanges(node)
        node.node_observer.rounds, node.node_observer.round_seconds = 2, 0.3

    def pace(path: Path, **settings: Any) -> str:
        machine = status(path, change, **settings)[1]["machine"]
        return str(next(check["text"] for check in machine if check["name"] == "pace"))

    assert pace(tmp_path / "paced", round={"every": "20m"}) == "a round every 20 min, 5 kB of models a day"
    assert pace(tmp_path / "unpaced") == "a round every 0.15 s"


def test_a_node_that_receives_nothing_says_so_whatever_the_cause(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        does_rounds_without_models(node)
        dialled(reached=True)(node)

    found = health(tmp_path, change)
    receiving, sending = found["checks"][1:]
    assert found["receives_nothing"]
    assert (receiving["level"], receiving["text"]) == ("fail", f"no model in {ROUNDS} rounds")
    assert sending["level"] == "fail"
    assert "SendModel: gone" in sending["text"]


def test_a_node_that_can_dial_none_of_its_peers_says_which(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        does_rounds_without_models(node)
        dialled(reached=True)(node)
        for _ in range(3):
            node.client.dials.failed(YOU, NORTH.address, "no answer", 0.0)

    found = health(tmp_path, change)
    assert found["checks"][1]["todo"] == "this node cannot connect to north: check the firewall"
    assert found["peers"][0]["dial_error"] == "no answer"


def test_a_node_that_is_done_is_green(tmp_path: Path) -> None:
    def change(node: DaemonNode) -> None:
        learns(node)
        node.state = "done"

    assert health(tmp_path, change)["green"]
