"""A small program that writes what a node writes, over and over, with the real store: to be killed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from pfl_node.failpoints import arm
from pfl_node.model import Entry, Layout, Model
from pfl_node.store.atomic import write_atomic
from pfl_node.store.checkpoints import Checkpoints
from pfl_node.store.data_dir import DataDir
from pfl_node.store.journal import Journal
from pfl_node.store.model_file import save_model

LAYOUT = Layout((Entry("core", (200, 100)),), (Entry("head", (10,)),))
FACTS = {"run": "crash", "policy": "Writer"}


def state_of(round: int) -> dict[str, Any]:
    """What must be found, to the last bit."""
    vector = np.random.default_rng(round).normal(size=LAYOUT.size).astype(np.float32)
    return {
        "model": Model(LAYOUT, vector),
        "round": round,
        "kept": {"squares": [n * n for n in range(round % 50)]},
    }


class OpenStore:
    """Everything of one node that is on the disk, open; what was found there is checked."""

    def __init__(self, folder: Path) -> None:
        self.home = DataDir.open(folder)
        self.generations = Checkpoints(self.home.checkpoint)
        found = self.generations.load(LAYOUT, **FACTS)
        self.round = -1  # the last that is whole
        if found:
            self.round = found.state["round"]
            assert found.state == state_of(self.round), f"round {self.round} is not as it was written"
        self.journal = Journal(self.home.journal)
        self._check_journal()
        self._check_model()

    def write(self, round: int) -> None:
        self.journal.write("round", {"round": round}, time=0.0)
        self.journal.sync()
        metadata = {"incarnation": str(self.home.identity.incarnation)}
        self.generations.save(state_of(round), LAYOUT, metadata=metadata, **FACTS)
        save_model(self.home.model, {"w": state_of(round)["model"].vector}, round=str(round))
        write_atomic(self.home.settings, f"rounds = {round + 1}\n".encode(), what="settings")
        write_atomic(self.home.path / "summary.json", json.dumps({"round": round}).encode())
        self.home.keep_incarnation(self.home.identity.incarnation + 1)

    def close(self) -> None:
        self.journal.close()
        self.home.close()

    def _check_journal(self) -> None:
        """Every line is whole, and no round of the checkpoint is missing."""
        rows = [json.loads(line) for line in self.home.journal.read_text().splitlines()]
        assert set(range(self.round + 1)) <= {row["round"] for row in rows}

    def _check_model(self) -> None:
        """It is whole, and of a round of which there was a checkpoint before."""
        if self.home.model.exists():
            with safe_open(self.home.model, framework="numpy") as file:
                round = int(file.metadata()["round"])
                assert np.array_equal(file.get_tensor("w"), state_of(round)["model"].vector)
            assert round <= self.round


def write(folder: Path, times: int) -> None:
    """Goes on from what it finds; says `from ROUND INCARNATION ID`, then `done ROUND` after each."""
    context = OpenStore(folder)
    print("from", context.round, context.home.identity.incarnation, context.home.identity.id, flush=True)
    for round in range(context.round + 1, context.round + 1 + times):
        context.write(round)
        print("done", round, flush=True)
    context.close()


def main() -> None:
    """A writer for every line of stdin, as a process of its own that need not import anything; its id is said."""
    for line in sys.stdin:
        order = json.loads(line)
        if (child := os.fork()) == 0:
            os.dup2(os.open(order["out"], os.O_WRONLY | os.O_CREAT, 0o600), 1)
            arm(order["points"])
            write(Path(order["folder"]), order["times"])
            return
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
