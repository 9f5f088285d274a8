"""Every policy of the table between real nodes: real gRPC on localhost, real training on the digits.

The nodes of a scene live in this process and share its trainer, so torch is imported once; what moves between them
goes through their sockets all the same. Swarms of several processes: `test_three_worlds.py`, and two of them here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from pfl_node.ops.status import details_of
from pfl_node.policies import POLICIES
from pfl_node.testing.contract import small
from tests.e2e.in_process import Life, Town, play
from tests.e2e.processes import command, fast

NODES, ROUNDS = 4, 3
TASK = {"samples": 40, "auxiliary": 0.1, "nodes": NODES}
USUAL = {"stale_round", "not_ready", "flood"}  # reasons to refuse where nodes begin, hurry and end on their own


def settings(name: str, **task: Any) -> dict[str, Any]:
    policy = {"name": name, **small(POLICIES[name], real_time=True)}
    start = {"peers": NODES - 1, "wait": 60}
    return {"policy": policy, "rounds": ROUNDS, "start": start, "task": TASK | task}


async def lives(town: Town, name: str, **task: Any) -> list[Life]:
    """Four nodes, from their start to their end."""
    seed = await town.listens("n0", lab=True, **_at(0, settings(name, **task)))
    rest = [
        await town.listens(f"n{i}", lab=True, peer_seed=[seed.address], **_at(i, settings(name, **task)))
        for i in range(1, NODES)
    ]
    everybody = [seed, *rest]
    for life in everybody:
        life.begin()
    assert await asyncio.gather(*(life.ends() for life in everybody)) == ["done"] * NODES
    return everybody


def _at(index: int, wanted: dict[str, Any]) -> dict[str, Any]:
    return wanted | {"task": wanted["task"] | {"index": index}}


def check(everybody: Sequence[Life], *, solitary: bool) -> None:
    refused, failed = Counter[str](), Counter[str]()
    for life in everybody:
        rounds = [row["round"] for row in life.rows("round")]
        assert rounds[:ROUNDS] == list(range(ROUNDS))
        assert life.node.policy
        assert life.node.policy.model.is_finite()
        assert all(np.isfinite(tensor).all() for tensor in load_file(life.node.home.model).values())
        assert 0 < life.rows("finished")[0]["test_accuracy"] <= 1
        assert life.rows("diverged") == []
        told = details_of(life.node)
        assert (told["bytes_sent"] + told["bytes_received"] > 0) is not solitary
        refused.update(told["refused"])
        for call, times in told["failed_calls"].items():
            failed[call.split()[-1]] += times
    # who says goodbye is not talked to any more, in the middle of a word if need be
    assert refused.pop("truncated", 0) <= failed["gone"]
    assert refused.keys() <= USUAL
    assert failed.keys() <= USUAL | {"gone"}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_over_real_grpc(name: str, tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        check(await lives(town, name), solitary=POLICIES[name].solitary)

    play(tmp_path, scene)


@pytest.mark.slow
def test_nodes_with_different_models_distill_from_each_other(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        everybody = await lives(town, "feded", model="mlp,cnn")
        check(everybody, solitary=False)
        assert len({life.node.policy.model.layout for life in everybody if life.node.policy}) == 2
        for life in everybody:
            others = {other.node.id for other in everybody} - {life.node.id}
            assert all(set(row["from"]) == others for row in life.rows("round"))

    play(tmp_path, scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"), [("oracle", []), ("feded", ["task.auxiliary=0.1", "task.model=mlp,cnn"])]
)
def test_a_swarm_of_processes_is_a_lab_and_may_have_two_kinds_of_models(
    name: str, task: list[str], tmp_path: Path
) -> None:
    knobs = [f"policy.{knob}={value}" for knob, value in small(POLICIES[name], real_time=True).items()]
    words = ["--policy", name, "--rounds", ROUNDS, *fast(policy=[*knobs, *task])]
    done = command("swarm", "--nodes", NODES, "--workers", 2, "--out", tmp_path, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert all(node["rounds"] >= ROUNDS and node["bytes_received"] > 0 for node in summary["per_node"])
    assert summary["refused"].keys() <= USUAL | {"truncated"}
    models = [load_file(path) for path in (tmp_path / "nodes").glob("*/model.safetensors")]
    assert len(models) == NODES
    assert len({tuple(model) for model in models}) == (2 if name == "feded" else 1)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or ())]


def test_a_daemon_does_not_follow_the_oracle(tmp_path: Path) -> None:
    done = command("--policy", "oracle", "--rounds", 1, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "policy oracle needs the true clusters, which a daemon does not have" in line
    assert list(tmp_path.iterdir()) == []
