"""Daemons with `wire.compress`: one is killed in the middle of the run and continues from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Process, ask, fast, processes, until

NODES, ROUNDS, KILLED_AT = 4, 40, 15
WORDS = fast(policy=["policy.degree=2", "task.angles=[0]", "round.every=0.2s", "store.checkpoint_every=1"])
SMALL = ["--set", "wire.encoding=int8", "--set", "wire.zstd=1"]
PLACE = ["--set", f"task.nodes={NODES}", "--set", f"start.peers={NODES - 1}", "--set", "start.wait=60"]


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def final_accuracies(folder: Path, how: str, *, kill: bool) -> list[float]:
    """Of four daemons; with `kill`, the last one is killed with SIGKILL and started again."""
    folder.mkdir()
    with processes(folder, preloaded=True) as start:
        seed = start("bootstrap", "--listen", "127.0.0.1:0").address

        def node(n: int) -> Process:
            own = ["--data-dir", f"n{n}", "--set", f"task.index={n}", "--set", f"wire.compress={how}"]
            words = ["--peer-seed", seed, "--policy", "el", "--rounds", ROUNDS]
            return start("pfl_node", *words, *own, *WORDS, *SMALL, *PLACE)

        nodes = [node(n) for n in range(NODES)]
        if kill:
            address = nodes[-1].address
            until(lambda: ask("status", address)["round"] >= KILLED_AT, nodes[-1])
            nodes[-1].popen.kill()
            nodes[-1].popen.wait()
            nodes[-1] = node(NODES - 1)
            nodes[-1].says("continuing from the checkpoint")
        assert [process.wait() for process in nodes] == [0] * NODES, nodes[-1].output
    last = [events(folder / f"n{n}")[-1] for n in range(NODES)]
    assert [row["event"] for row in last] == ["finished"] * NODES
    return [row["test_accuracy"] for row in last]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["top:0.2", "fragments:16/4"])
def test_a_killed_daemon_continues_a_compressed_run(tmp_path: Path, how: str) -> None:
    whole = final_accuracies(tmp_path / "whole", how, kill=False)
    broken = final_accuracies(tmp_path / "broken", how, kill=True)
    assert sum(broken) / NODES > sum(whole) / NODES - 0.03
    assert broken[-1] > min(whole) - 0.1
