"""LoRA, FedBN and Lightning as four daemons over gRPC; one is killed, and continues with its optimizer's state."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.e2e.processes import Process, processes, until

EXAMPLES = Path(__file__).parents[2] / "examples"
SETS = ("store.checkpoint_every=1", "task.nodes=4", "round.patience=60")
ADAM = ("train.optimizer=adam", "train.keep_optimizer=true", "train.lr=0.01")


def rounds(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return journal.read_text().count('"event":"round"') if journal.exists() else 0


def steps(folder: Path) -> int:
    """The steps of the optimizer in the last checkpoint: `t` of ours, or `step` of torch.optim's."""
    last = sorted(folder.glob("checkpoint-*.safetensors"))[-1]
    with safe_open(last, framework="numpy") as file:
        scalars = [float(t) for name in file.keys() if (t := file.get_tensor(name)).ndim == 0]  # noqa: SIM118
        state = json.loads(file.metadata()["state"])
    return int(max([*scalars, *_counts(state)]))


def _counts(value: Any) -> list[float]:
    if isinstance(value, dict):
        return _counts(list(value.values()))
    if not isinstance(value, list):
        return []
    if len(value) == 2 and str(value[0]).startswith("optimizer/") and str(value[0]).endswith("/t"):
        return [float(value[1])]
    return [count for item in value for count in _counts(item)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "package", "sets"),
    [
        ("lora/letters.py:letters", "peft", ADAM),
        ("fedbn/scanners.py:scanners", "torch", ADAM),
        ("lightning/digits.py:digits", "lightning", ()),
    ],
    ids=["lora", "fedbn", "lightning"],
)
def test_a_killed_daemon_continues_with_its_optimizer(
    tmp_path: Path, task: str, package: str, sets: tuple[str, ...]
) -> None:
    pytest.importorskip(package)
    words = [word for text in (*SETS, *sets) for word in ("--set", text)]
    with processes(tmp_path, preloaded=True) as start:
        bootstrap = start("bootstrap", "--listen", "127.0.0.1:0")

        def node(n: int) -> Process:
            place = ("--peer-seed", bootstrap.address, "--data-dir", f"n{n}", "--set", f"task.index={n}")
            return start("pfl_node", "--policy", "el", "--task", EXAMPLES / task, *place, *words)

        nodes = [node(n) for n in range(4)]
        until(lambda: all(rounds(tmp_path / f"n{n}") >= 4 for n in range(4)), nodes[0])
        nodes[3].popen.kill()
        nodes[3].popen.wait()
        before, trained = rounds(tmp_path / "n3"), steps(tmp_path / "n3")
        assert trained > 0
        nodes[3] = node(3)
        nodes[3].says("continuing from the checkpoint")
        until(lambda: rounds(tmp_path / "n3") > before or None, nodes[3])
        for process in nodes:
            process.popen.send_signal(signal.SIGTERM)
        assert [process.wait() for process in nodes] == [0] * 4
        bootstrap.popen.send_signal(signal.SIGINT)
        assert bootstrap.wait() == 0
    per_round = trained / before
    assert steps(tmp_path / "n3") == pytest.approx(per_round * rounds(tmp_path / "n3"), abs=2 * per_round)
    assert steps(tmp_path / "n3") > trained  # a new optimizer would have begun to count again
