"""The same policy object code runs in the simulator, in a swarm and in separate daemons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfl_node.policies import POLICIES
from pfl_node.testing.contract import small
from tests.e2e.processes import fast, preloaded_command, processes, states

ROUNDS = 6
KNOBS = {
    "gossip": ["policy.delta=0.1", "policy.n_peers=2", "policy.quiet=1"],
    "pens": [
        "policy.delta=0.1", "policy.n_sampled=2", "policy.m=1", "policy.T=3", "policy.n_peers=2", "policy.quiet=1",
    ],
    "facade": ["policy.warmup=2", "policy.degree=2"],
    "el": ["policy.degree=2", "wire.compress=top:0.3", "wire.encoding=int8", "wire.zstd=1"],
    "gradient_tracking": ["policy.degree=2", "policy.batch=60", "policy.alpha=1"],
    "scaffold": ["policy.degree=2", "policy.K=40", "policy.eta_l=0.1"],
    "el in fragments": ["policy.degree=2", "wire.compress=fragments:4/2", "wire.encoding=int8"],
}  # fmt: skip
REPORTS_SENDERS = ("gossip", "pens", "fedfomo", "ggc")  # the rounds in the journal say whose models were averaged
SMALL = ("bandit", "choco", "dfca", "dfedalt", "dfedpgp", "ditto", "fedfomo", "ggc", "mosaic", "sgp")
KNOBS |= {
    name: [f"policy.{knob}={value}" for knob, value in small(POLICIES[name], real_time=True).items()]
    for name in SMALL
}
DEFAULT = ("gossip", "pens", "facade", "el")  # without the option `-m slow`

every_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in DEFAULT else [pytest.mark.slow]) for case in KNOBS]
)


def words(case: str) -> list[Any]:
    return ["--policy", case.split()[0], "--rounds", ROUNDS, *fast(policy=KNOBS[case])]


def check(summary: dict[str, Any], case: str) -> None:
    assert summary["accuracy"] > (0.2 if case == "gradient_tracking" else 0.3)  # chance is 0.1
    assert summary["models_sent"] > 0
    assert all(n["rounds"] >= ROUNDS for n in summary["per_node"])
    assert bool(summary.get("neighbours")) == (case == "pens")
    assert bool(summary.get("heads_by_cluster")) == (case in ("facade", "dfca"))


@every_case
def test_in_the_simulator(case: str, tmp_path: Path) -> None:
    done = preloaded_command("sim", "--nodes", 4, "--out", "out", *words(case), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(json.loads((tmp_path / "out" / "summary.json").read_text()), case)


@every_case
def test_in_a_swarm(case: str, tmp_path: Path) -> None:
    workers = 2 if case == "pens" else 1  # each imports torch; between processes one policy is enough
    done = preloaded_command(
        "swarm", "--nodes", 4, "--workers", workers, "--out", "out", *words(case), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr + done.stdout
    check(json.loads((tmp_path / "out" / "summary.json").read_text()), case)
    assert len(list((tmp_path / "out" / "nodes").glob("*/model.safetensors"))) == 4


@every_case
def test_in_separate_daemons(case: str, tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        seed = start("bootstrap", "--listen", "127.0.0.1:0").address
        place = ["--set", "task.nodes=3", "--set", "start.peers=2", "--set", "start.wait=60"]
        nodes = [
            start(
                "pfl_node", "--peer-seed", seed, "--data-dir", f"n{i}", "--set", f"task.index={i}", *place,
                *words(case),
            )
            for i in range(3)
        ]  # fmt: skip
        assert [n.wait() for n in nodes] == [0, 0, 0], "".join(n.output for n in nodes)
        assert list(states(seed).values()) == ["left"] * 3
    merged = False
    for i in range(3):
        rows = [json.loads(line) for line in (tmp_path / f"n{i}" / "journal.jsonl").read_text().splitlines()]
        rounds = [r for r in rows if r["event"] == "round"]
        assert len(rounds) >= ROUNDS
        merged = merged or any(r.get("from") for r in rounds)
        assert rows[-1]["event"] == "finished"
        assert rows[-1]["test_accuracy"] > 0.2
    # Gossip waits for nobody: on a busy machine one node may be done before another has sent its first model.
    assert merged == (case in REPORTS_SENDERS)


def test_partial_models_have_the_same_bytes_in_the_simulator_and_in_a_swarm(tmp_path: Path) -> None:
    """Both count payloads. Without zstd: the values, and so the sizes of zstd frames, differ with the node ids."""
    plain = [*words("el"), "--set", "wire.zstd=0"]
    done = preloaded_command("sim", "--nodes", 4, "--out", "sim", *plain, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = preloaded_command("swarm", "--nodes", 4, "--workers", 1, "--out", "swarm", *plain, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sim, swarm = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("sim", "swarm"))
    assert sim["models_sent"] == swarm["models_sent"]
    assert sim["bytes_sent"] == swarm["bytes_sent"]
