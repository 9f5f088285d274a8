"""What goes to those who watch, and what to the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.learning.trainer import TrainerThread
from pfl_node.membership.member import Member, Reachability
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, Suspected
from pfl_node.membership.packet import Rumor
from pfl_node.membership.reachability import DialBackResult
from pfl_node.ops.exchange import ROUNDS
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.settings import LogSettings, Settings
from pfl_node.types import PeerId

BOB = Member("b", "bob", "127.0.0.1:7")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def told(
    path: Path, scene: Callable[[DaemonNode], None], level: Any = "info"
) -> tuple[DaemonNode, list[dict[str, Any]]]:
    """What the log says meanwhile."""
    stream = io.StringIO()
    configure_logs(LogSettings(level=level, format="json"), stream)

    async def main() -> DaemonNode:
        node = DaemonNode(Settings(), DiskStore.open(path), TrainerThread())
        scene(node)
        await node.close()
        return node

    return asyncio.run(main()), [json.loads(line) for line in stream.getvalue().splitlines()]


def changes(node: DaemonNode) -> None:
    for event in (Joined(BOB), Suspected(BOB), Changed(BOB), Died(BOB), Left(BOB)):
        node.node_observer.membership(event)


def test_every_change_of_a_member_is_an_event_and_those_to_look_for_later_are_logged(tmp_path: Path) -> None:
    node, lines = told(tmp_path, changes)
    assert [e.kind for e in node.node_observer.hub.recent()] == ["joined", "suspected", "changed", "died", "left"]
    assert node.node_observer.hub.recent()[0].data["name"] == "bob"
    assert [(line["level"], line["event"]) for line in lines] == [
        ("info", "joined"),
        ("warning", "died"),
        ("info", "left"),
    ]
    assert {line["peer"] for line in lines} == {"bob"}


def test_the_level_of_the_log_holds(tmp_path: Path) -> None:
    assert [line["event"] for line in told(tmp_path, changes, level="warning")[1]] == ["died"]


def test_bootstraps_and_the_node_itself_are_not_on_the_log_and_a_clash_of_ids_is(tmp_path: Path) -> None:
    def scene(node: DaemonNode) -> None:
        node.node_observer.membership(Joined(Member("s", "seed", "127.0.0.1:1", role="bootstrap")))
        node.node_observer.membership(Changed(Member(node.id, "me")))
        node.node_observer.membership(Clashed(Member(node.id, "me", "10.0.0.9:1")))

    node, lines = told(tmp_path, scene)
    assert [e.kind for e in node.node_observer.hub.recent()] == ["joined", "warning"]
    assert [(line["level"], line["address"]) for line in lines] == [("warning", "10.0.0.9:1")]


def test_a_flood_of_refused_messages_is_one_line_for_each_reason(tmp_path: Path) -> None:
    def scene(node: DaemonNode) -> None:
        for _ in range(100):
            node.host.count("SendModel", "flood", "b", 0)
        node.host.count("GetModel", "not_served", "b", 0)

    node, lines = told(tmp_path, scene)
    assert node.node_observer.hub.counts["refused"] == 101
    assert [(line["event"], line["reason"]) for line in lines] == [("refused", "flood"), ("refused", "not_served")]


def test_who_watches_does_not_hear_how_a_model_did_on_my_data(tmp_path: Path) -> None:
    def scene(node: DaemonNode) -> None:
        node.guard.tell("kept_out", {"peer": "b", "reason": "gate", "loss": 2.302585, "mine": 0.5})

    (event,) = told(tmp_path, scene)[0].node_observer.hub.recent(kinds={"kept_out"})
    assert event.data == {"peer": "b", "reason": "gate"}


def test_a_node_that_nobody_reaches_gets_one_line_and_one_when_it_is_over(tmp_path: Path) -> None:
    def scene(node: DaemonNode) -> None:
        failed = DialBackResult("b", "north", "192.168.50.2:7946", False, "no answer", 0.0, 0.0)
        for state in (Reachability.DIRECT, Reachability.UNREACHABLE, Reachability.DIRECT):
            node.node_observer.reachability(state, [failed])

    node, lines = told(tmp_path, scene)
    assert [(line["level"], line["event"]) for line in lines] == [
        (
            "warning",
            "north cannot reach you at 192.168.50.2:7946 (no answer): "
            "open the port, set advertise, or use a relay",
        ),
        ("info", "others can connect to this node"),
    ]
    states = [event.data["state"] for event in node.node_observer.hub.recent(kinds={"reachability"})]
    assert states == ["direct", "unreachable", "direct"]


def test_a_node_that_receives_nothing_warns_once_and_says_when_models_arrive_again(tmp_path: Path) -> None:
    def scene(node: DaemonNode) -> None:
        node.membership.swim._view.learn(Rumor(BOB), 0.0)
        node.node_observer.exchange.begin(0.0)
        for number in range(3 * ROUNDS):
            node.node_observer._exchanged(TransferTotals(0, 0, Counter(), Counter()), 10.0 * number)
        came = TransferTotals(0, 9, Counter(), Counter({PeerId("b"): 1}))
        node.node_observer._exchanged(came, 1000.0)

    _, lines = told(tmp_path, scene)
    warning, again = lines
    assert (warning["level"], again["event"]) == ("warning", "models arrive again")
    assert warning["event"].startswith(f"no model has arrived for {ROUNDS} rounds")
