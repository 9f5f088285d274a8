"""Four daemons whose models have a frozen base, private normalisation and a scaler; one of them is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tests.e2e.processes import Process, ask, processes, until
from tests.unit.sim import local_parts

BATCHES = 6  # of a training
SETS = ("store.checkpoint_every=1", "train.keep_optimizer=true", "train.optimizer=adam", "train.lr=0.01")
WORDS = [word for text in SETS for word in ("--set", text)]


def rounds(folder: Path) -> int:
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return sum('"event":"round"' in line for line in lines)


def kept_steps(folder: Path) -> list[Any]:
    """The steps of the optimizer in the last checkpoint."""
    last = sorted(folder.glob("checkpoint-*.safetensors"))[-1]
    with safe_open(last, framework="numpy") as file:
        state = json.loads(file.metadata()["state"])
    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, list):
            if len(value) == 2 and str(value[0]).startswith("optimizer/") and str(value[0]).endswith("/t"):
                found.append(value[1])
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            walk(list(value.values()))

    walk(state)
    return found


def test_a_killed_daemon_continues_with_its_private_tensors_and_its_optimizer(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        bootstrap = start("bootstrap", "--listen", "127.0.0.1:0")

        def node(n: int) -> Process:
            task = ("--task", f"{local_parts.__file__}:everything", "--set", f"task.index={n}")
            place = ("--peer-seed", bootstrap.address, "--data-dir", f"n{n}")
            return start("pfl_node", "--policy", "el", *place, *task, *WORDS)

        nodes = [node(n) for n in range(4)]
        addresses = [process.address for process in nodes]
        until(lambda: all(ask("status", a)["round"] >= 3 for a in addresses), nodes[0])
        nodes[3].popen.kill()
        nodes[3].popen.wait()
        before = rounds(tmp_path / "n3")
        nodes[3] = node(3)
        nodes[3].says("continuing from the checkpoint")
        until(lambda: rounds(tmp_path / "n3") >= before + 2 or None, nodes[3])
        for process in nodes:
            process.popen.send_signal(signal.SIGTERM)
        assert [process.wait() for process in nodes] == [0] * 4
        bootstrap.popen.send_signal(signal.SIGINT)
        assert bootstrap.wait() == 0

    for n in range(4):
        folder = tmp_path / f"n{n}"
        with safe_open(folder / "model.safetensors", framework="numpy") as file:
            own = local_parts.data(n, 1, 100.0 * n).x.mean(0).numpy()
            np.testing.assert_allclose(file.get_tensor("scaler.mean"), own)
            trained = int(file.get_tensor("bn1.num_batches_tracked"))
            assert "first.base.weight" not in file.keys()  # noqa: SIM118
            assert file.metadata()["frozen"]
        assert abs(trained - BATCHES * rounds(folder)) <= BATCHES
        travels, private = kept_steps(folder)
        assert travels == private
        assert abs(travels - trained) <= BATCHES
        assert max(path.stat().st_size for path in folder.glob("checkpoint-*")) < 20_000
