"""What a node answers to "how are you", before and after it has learnt anything."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfl_node import __version__
from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.errors import PeerGone
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.recorder import Recorder
from pfl_node.ops.status import details_of, status_of
from pfl_node.settings import Settings
from pfl_node.steps import Record
from pfl_node.types import Eval, Offer, PeerId
from pfl_node.wire.peer_pb2 import Status
from tests.toy import ToyLearner, constant

YOU = PeerId("you")
MACHINE = ["certificate", "key", "disk", "clock", "pace", "data", "device"]


def status(path: Path, change: Callable[[DaemonNode], None] | None = None, **settings: Any) -> tuple[Status, Any]:
    async def go() -> Status:
        home = DiskStore.open(path)
        node = DaemonNode(Settings.model_validate(settings), home, TrainerThread())
        try:
            await node.start()
            if change:
                change(node)
            return Status.FromString(status_of(node).SerializeToString())
        finally:
            if node.recorder:
                node.recorder.close()
            await node.close()

    found = asyncio.run(go())
    return found, json.loads(found.json, parse_constant=lambda word: AssertionError(word))


def learns(node: DaemonNode) -> None:
    """As after some rounds, with figures that are not numbers among the others."""
    node.policy = node.plan.policy(
        me=node.id, cfg=node.plan.cfg, model=constant(0.0), rounds=None, seed=0, rng=random.Random(0)
    )
    node.policy.round = 7
    node.state = "training"
    node.recorder = Recorder(
        node.settings,
        node.store,
        node.policy,
        ToyLearner(),
        node.trainer,
        work=node.work,
        log=node.log,
        publish=lambda _: None,
        ended=lambda _: None,
    )
    node.recorder.measured = {"test": Eval(loss=0.5, accuracy=float("nan"), samples=3)}
    node.recorder.record(Record("neighbours", {"ids": [YOU], "pairs": {(1, 2): float("inf")}}))
    node.recorder.failed("SendModel", PeerGone(YOU, "no answer"))
    node.recorder.gave_up(6, [YOU], 2.0)
    node.client.traffic.add(YOU, "out", 100)
    node.client.traffic.add(YOU, "in", 10)
    node.mailbox.put(Offer(YOU, constant(1.0)))
    node.host.received[YOU] += 2
    node.host.count("SendModel", "ok", YOU, 30)
    node.host.count("SendModel", "layout", YOU, 0)


def test_before_it_has_learnt_anything_it_says_who_and_where_it_is(tmp_path: Path) -> None:
    found, details = status(tmp_path, name="ann", run="r", rounds=9, policy={"name": "el"})
    assert (found.name, found.role, found.run, found.policy, found.task) == ("ann", "node", "r", "el", "digits")
    assert (found.state, found.round, found.rounds) == ("starting", 0, 9)
    assert found.address.startswith("127.0.0.1:")
    assert not found.address.endswith(":0")
    assert found.uptime >= 0
    assert details.pop("health")["level"] == "waiting"
    assert [check["name"] for check in details.pop("machine")] == MACHINE
    assert details == {
        "peers": 0,
        "waiting_for": [],
        "waiting": [],
        "next_round": None,
        "models_waiting": 0,
        "models_sent": {},
        "models_received": {},
        "bytes_sent": 0,
        "bytes_received": 0,
        "bytes_per_second_to": {},
        "refused": {},
        "guard": {"against": {}, "ever": {}, "quarantine": {}, "refused": {}},
        "privacy": {},
        "honest": True,
        "reachability": "unknown",
        "relays": [],
        "membership": {},
        "version": __version__,
        "learns_with": {},
        "learned_from": {},
    }


def test_without_an_end_no_number_of_rounds_is_told(tmp_path: Path) -> None:
    assert not status(tmp_path)[0].HasField("rounds")


def test_a_name_is_made_from_the_id_and_the_advertised_address_is_told(tmp_path: Path) -> None:
    found, _ = status(tmp_path, advertise="node.example:7000", insecure=True)
    assert found.name == f"node-{found.id[:6]}"
    assert found.address == "node.example:7000"


def test_after_some_rounds_it_tells_its_figures_in_plain_json(tmp_path: Path) -> None:
    found, details = status(tmp_path, learns)
    assert (found.state, found.round) == ("training", 7)
    assert details["samples"] == 10
    assert details["models_sent"] == {YOU: 1}
    assert details["models_received"] == {YOU: 3}
    assert (details["bytes_sent"], details["bytes_received"]) == (100, 40)
    assert details["models_waiting"] == 1
    assert details["refused"] == {"layout": 1}
    assert details["failed_calls"] == {"SendModel gone": 1}
    assert details["given_up"] == 1
    assert details["written"] == {"checkpoint_round": None, "failed_checkpoints": 0, "lost_lines": 0}
    assert details["measured"] == {"test": {"loss": 0.5, "accuracy": None}}
    assert details["told"] == {"neighbours": {"ids": [YOU], "pairs": {"(1, 2)": None}}}


def test_the_details_are_the_same_for_a_swarms_report(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def look(node: DaemonNode) -> None:
        learns(node)
        seen.append(details_of(node))

    assert status(tmp_path, look)[1] == seen[0]
