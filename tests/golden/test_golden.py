"""Compares the digests of a set of simulations with the committed ones: a refactoring must not change results.

`pytest -n 0 tests/golden --golden-update` rewrites them. The last column is a digest of what each node has learnt;
it does not depend on timing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pfl_node.sim.outcome import Summary
from tests.golden.runs import RUNS

FILE = Path(__file__).with_name("digests.txt")
PLATFORM = "# torch: "


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]


def as_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def platform() -> str:
    """What the results of torch depend on, with the kernels that tests/conftest.py chooses."""
    import torch

    return f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def journal_of(name: str, out: Path) -> bytes:
    """With torch, losses are rounded: a convolution of few samples differs in the last bit between processors."""
    content = (out / "journal.jsonl").read_bytes()
    if not getattr(RUNS[name], "torch", False):
        return content
    events = [json.loads(line) for line in content.splitlines()]
    losses = {what for event in events for what in event if what.endswith("_loss")}
    return as_bytes([event | {what: f"{event[what]:.5g}" for what in losses & event.keys()} for event in events])


def digests(name: str, out: Path) -> tuple[str, str, str]:
    """Digests of the journal, the summary, and what each node has learnt."""
    summary: Summary = RUNS[name](out)
    found = json.loads((out / "summary.json").read_text())
    told = {key: value for key, value in found.items() if key not in ("wall_seconds", "cpu_seconds")}
    learnt = [[n.id, n.accuracy, n.loss, n.rounds, n.neighbours, n.head, n.confusion] for n in summary.nodes]
    return digest(journal_of(name, out)), digest(as_bytes(told)), digest(as_bytes(learnt))


def written() -> tuple[str, dict[str, tuple[str, str, str]]]:
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    made_with = next((line.removeprefix(PLATFORM) for line in lines if line.startswith(PLATFORM)), "")
    rows = [line.rsplit(maxsplit=3) for line in lines if line and not line.startswith("#")]
    return made_with, {name: (journal, summary, learnt) for name, journal, summary, learnt in rows}


def update(name: str, found: tuple[str, str, str]) -> None:
    rows = {**written()[1], name: found}
    head = f"# simulation; digests of its journal, its summary, what each node learnt\n{PLATFORM}{platform()}\n"
    FILE.write_text(head + "".join(f"{n:<26}{'  '.join(rows[n])}\n" for n in RUNS if n in rows))


@pytest.mark.parametrize("name", RUNS)
def test_the_result_is_the_committed_one(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made_with, known = written()
    again = request.config.getoption("--golden-update")
    if getattr(RUNS[name], "torch", False) and not again and platform() != made_with:
        pytest.skip(f"the digest was made with torch {made_with}")
    found = digests(name, tmp_path)
    if again:
        assert not hasattr(request.config, "workerinput"), "parallel workers overwrite the file: use -n 0"
        update(name, found)
    else:
        assert found == known[name], "if this is meant: pytest tests/golden --golden-update, and say why"
