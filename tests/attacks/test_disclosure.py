"""What a node tells others about its settings."""

from __future__ import annotations

import asyncio
import json
from contextvars import copy_context
from pathlib import Path

from pfl_node.ops.bugreport import from_directory, from_node
from pfl_node.security.caller import CALLER
from pfl_node.types import PeerId
from pfl_node.wire.server import IncomingCall
from tests.attacks.conftest import Figure
from tests.e2e.in_process import Town, play

NAMES = ("access_key", "auth", "pwd", "dsn", "bearer", "sas", "pin", "conn", "login", "k")
SECRET = "hunter2"
TASK = """
from pfl_node.learning.digits import digits
def task(index, nodes, seed, node_id, **credentials):
    return digits(index=index, nodes=nodes, seed=seed, node_id=node_id, samples=40)
"""


def test_options_of_a_task_leave_the_node_neither_as_an_event_nor_in_a_bug_report(
    tmp_path: Path, figure: Figure
) -> None:
    (tmp_path / "mine.py").write_text(TASK)

    async def scene(town: Town) -> None:
        options = {name: f"{SECRET}-{name}" for name in NAMES}
        ann = await town.runs(
            "ann", policy={"name": "local"}, task={"name": f"{tmp_path / 'mine.py'}:task", **options}
        )
        await ann.trains()
        await ann.rounds(1)
        events = [event.plain() for event in ann.node.node_observer.hub.recent()]
        opened = next(event["data"] for event in events if event["kind"] == "opened")
        assert set(NAMES) <= set(opened["settings"]["task"])
        reports = await asyncio.to_thread(
            lambda: [*from_node(ann.address, {}, [], events), *from_directory(ann.node.home.path)]
        )
        leaked = sum(f"{SECRET}-{name}" in json.dumps([events, reports]) for name in NAMES)
        assert leaked == 0
        figure("credentials among a task's options", "10 of 10 sent to peers", f"{leaked} of {len(NAMES)}")

    play(tmp_path, scene)


def test_garbage_before_the_header_counts_against_the_member_that_tls_names(figure: Figure) -> None:
    counted: list[tuple[str, str]] = []

    class Host:
        def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
            counted.append((peer, outcome))

    def call() -> None:
        CALLER.set(PeerId("eve"))
        IncomingCall(Host(), "SendModel", 0.0).end("garbage")  # type: ignore[arg-type]

    copy_context().run(call)
    assert counted == [("eve", "garbage")]
    figure("garbage instead of a header, with TLS", "never counted", f"{len(counted)} of 1 counted")
