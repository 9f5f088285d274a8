"""Members, and strangers, that let a node work for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.learning.build import learner_at
from pfl_node.learning.task import Place
from pfl_node.settings import Settings, WireSettings
from pfl_node.types import Envelope, PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.codec import encode
from tests.attacks.conftest import Figure
from tests.attacks.member_flood import SENDER
from tests.e2e.in_process import Town, play
from tests.e2e.processes import Process, ask, until

Start = Callable[..., Process]
TASK = {"samples": 500, "model": "cnn"}
BEFORE = {("EvaluateModel", 1): "36 % of its speed", ("EvaluateModel", 2): "1 % of its speed"}
SECONDS = 20.0
RUNS = [("EvaluateModel", 1), ("EvaluateModel", 2), ("EvaluateModel", 5), ("SendModel", 5), ("GetModel", 5)]


POLICY = """
from pfl_node.policies.local import Local

class Serving(Local):
    takes = serves = ("model",)
    asks = True
"""


def training(start: Start, path: Path, name: str) -> Process:
    """A node that serves everything and calls nobody, so that it trains without a pause."""
    (path / "serving.py").write_text(POLICY)
    sets = {"task.samples": 500, "task.model": "cnn", "eval.every": 1000, "start.wait": 0}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    node = start(
        "pfl_node",
        *(
            "--listen",
            "127.0.0.1:0",
            "--policy",
            "serving.py:Serving",
            "--data-dir",
            name,
            "--log-format",
            "json",
            *words,
        ),
    )
    until(lambda: '"event": "round"' in node.output, node)
    return node


def rounds(*nodes: Process) -> list[int]:
    return [int(ask("status", node.address)["round"]) for node in nodes]


@pytest.mark.attacks
@pytest.mark.parametrize(("call", "attackers"), RUNS)
def test_any_number_of_members_leave_a_node_half_of_its_training_speed(
    start: Start, figure: Figure, tmp_path: Path, call: str, attackers: int
) -> None:
    """Compared with a node on the same machine at the same time that nobody calls."""
    model = learner_at(Settings.model_validate({"task": TASK}), Place(None, None, 0, "x")).fresh(0)
    message = b"".join(encode(model, Envelope(PeerId(SENDER), "default"), WireSettings()))
    (tmp_path / "message").write_bytes(message)
    victim, control = training(start, tmp_path, "victim"), training(start, tmp_path, "control")
    flood = start("tests.attacks.member_flood", victim.address, "default", tmp_path / "message", call, attackers)
    flood.says("joined")
    before = rounds(victim, control)
    time.sleep(SECONDS)
    mine, others = (now - then for now, then in zip(rounds(victim, control), before, strict=True))
    who = f"{call} without a pause by {attackers} member{'s' * (attackers > 1)}"
    figure(who, BEFORE.get((call, attackers), "-"), f"{mine / others:.0%} of its speed")
    assert mine >= others / 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": {"name": "greedy"}, "privacy": {"oracle": True}}, Reason.UNKNOWN_PEER),
        ({"policy": {"name": "greedy"}}, Reason.UNKNOWN_PEER),
    ],
)
def test_a_stranger_gets_neither_scores_nor_models(
    tmp_path: Path, figure: Figure, settings: dict[str, Any], reason: Reason
) -> None:
    refused = refusals(tmp_path, PeerId("stranger"), member=False, **settings)
    assert refused == [reason] * 2
    figure(
        "EvaluateModel and GetModel by non-members", "answered exactly", f"{len(refused)} of 2 refused: {reason}"
    )


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        ("a policy that never asks or fetches", {"policy": {"name": "el"}}),
        ("local", {"policy": {"name": "local"}}),
        ("PENS, which scores itself", {"policy": {"name": "pens"}}),
    ],
)
def test_a_node_serves_no_member_what_its_policy_never_asks_for(
    tmp_path: Path, figure: Figure, what: str, settings: dict[str, Any]
) -> None:
    refused = refusals(tmp_path, PeerId("member"), member=True, **settings)
    assert refused == [Reason.NOT_SERVED] * 2
    figure(f"EvaluateModel and GetModel, {what}", "answered exactly", f"{len(refused)} of 2 refused: not_served")


def test_exact_scores_are_not_served_where_training_is_private(tmp_path: Path, figure: Figure) -> None:
    pytest.importorskip("opacus")
    settings = {"policy": {"name": "greedy"}, "privacy": {"dp": True}}
    assert refusals(tmp_path, PeerId("member"), member=True, **settings)[0] is Reason.NOT_SERVED
    figure("EvaluateModel with privacy.dp", "answered exactly", "1 of 1 refused: not_served")


def refusals(path: Path, caller: PeerId, *, member: bool, **settings: Any) -> list[Reason]:
    """The reasons for which EvaluateModel and GetModel are refused."""
    found: list[Reason] = []

    async def scene(town: Town) -> None:
        life = await town.runs("n", **settings)
        await life.trains()
        life.node.host.member = lambda _: member
        assert life.node.policy
        model = life.node.policy.model
        client = PeerClient(caller, life.node.settings.run, WireSettings())
        try:
            for call in (
                client.evaluate(life.node.id, life.address, model),
                client.fetch(life.node.id, life.address, "model", model.layout),
            ):
                try:
                    await call
                except Refused as refused:
                    found.append(refused.reason)
        finally:
            await client.close()

    play(path, scene)
    return found
