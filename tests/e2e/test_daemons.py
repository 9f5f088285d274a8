"""As a new user would: a bootstrap and four nodes in five terminals."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

from safetensors import safe_open

from tests.e2e.processes import Process, ask, fast, processes, states, until

PENS = fast(
    policy=[
        "policy.delta=0.2", "policy.n_sampled=2", "policy.m=1", "policy.T=4", "policy.n_peers=2", "policy.quiet=2",
        "membership.probe_interval=0.5", "membership.probe_timeout=0.25",
    ]
)  # fmt: skip


def address_of(process: Process) -> str:
    return process.address


def _is_dead(address: str, node: str) -> bool:
    return states(address)[node] == "dead"


def test_five_terminals(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        bootstrap = start("bootstrap", "--listen", "127.0.0.1:0")
        seed = address_of(bootstrap)

        def node(n: int) -> Process:
            return start("pfl_node", "--peer-seed", seed, "--policy", "pens", "--data-dir", f"n{n}", *PENS)

        nodes = [node(n) for n in range(4)]
        until(lambda: list(states(seed).values()) == ["alive"] * 4, nodes[0])
        addresses = [address_of(p) for p in nodes]
        ids = [ask("status", a)["id"] for a in addresses]
        until(lambda: all(ask("status", a)["round"] >= 2 for a in addresses), nodes[0])

        nodes[3].popen.kill()
        for address in addresses[:3]:
            until(partial(_is_dead, address, ids[3]), nodes[0])
        before = [ask("status", a)["round"] for a in addresses[:3]]
        until(lambda: all(ask("status", a)["round"] > r for a, r in zip(addresses[:3], before, strict=True)))

        nodes[3] = node(3)
        again = address_of(nodes[3])
        until(lambda: states(seed).get(ids[3]) == "alive", nodes[3])
        assert ask("status", again)["id"] == ids[3]
        until(lambda: ask("status", again).get("measured"), nodes[3])

        for process in nodes:
            process.popen.send_signal(signal.SIGTERM)
        assert [p.wait() for p in nodes] == [0] * 4
        assert set(states(seed).values()) == {"left"}
        bootstrap.popen.send_signal(signal.SIGINT)
        assert bootstrap.wait() == 0

    for n in range(4):
        assert list((tmp_path / f"n{n}").glob("checkpoint-*.safetensors"))
        with safe_open(tmp_path / f"n{n}" / "model.safetensors", framework="numpy") as file:
            facts = file.metadata()
            assert facts["node"] == ids[n]
            assert facts["policy"] == "pens"
            assert float(facts["test_accuracy"]) > 0.2
            assert len(file.keys()) >= 2


def test_a_node_ends_by_itself_when_its_rounds_are_done_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        first = start("pfl_node", "--policy", "local", "--rounds", 3, "--data-dir", "n", *fast())
        assert first.wait() == 0, first.output
        second = start("pfl_node", "--policy", "local", "--rounds", 5, "--data-dir", "n", *fast())
        assert second.wait() == 0, second.output
        assert "continuing from the checkpoint" in second.output
    rounds = [
        line for line in (tmp_path / "n" / "journal.jsonl").read_text().splitlines() if '"event":"round"' in line
    ]
    assert len(rounds) == 5
