"""`simulate`: the real policies from settings to summary, and the files it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import ConfigError, SimulationStuck, StoreError
from pfl_node.policies import POLICIES
from pfl_node.settings import PolicySettings, Settings, TaskSettings
from pfl_node.sim import simulate
from pfl_node.sim.faults import Crash, node_ids
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulation import Progress
from tests.unit.sim.toy_swarms import B, toy

ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, dict[str, Any]] = {
    "gossip": {"n_peers": 2},
    "pens": {"n_peers": 2, "n_sampled": 3, "m": 1, "T": 4},
    "facade": {"warmup": 2},
    "el": {"all_reduce": True},
}


def quick(name: str, *, rounds: int | None = 6, seed: int = 0, **task: Any) -> Settings:
    policy = PolicySettings(name=name, **QUICK.get(name, {}))
    return Settings(rounds=rounds, seed=seed, policy=policy, task=TaskSettings(**task))


def small(name: str, out: Path | None = None, *, nodes: int = 8, seed: int = 0, **given: Any) -> Summary:
    return simulate(quick(name, seed=seed), nodes=nodes, out=out, load=toy, **given)


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_works_in_a_swarm_of_one_two_and_three(name: str, nodes: int) -> None:
    summary = small(name, nodes=nodes)
    assert [n.state for n in summary.nodes] == ["left"] * nodes
    assert all(n.rounds >= 6 and n.accuracy is not None for n in summary.nodes)


def test_the_summary_is_written_beside_the_journal(tmp_path: Path) -> None:
    summary = small("facade", tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == summary.as_dict()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]
    assert written["policy"] == "facade"
    assert len(written["per_node"]) == written["nodes"] == 8
    assert written["accuracy_by_cluster"].keys() == written["heads_by_cluster"].keys() == {"0", "1"}
    assert written["cpu_seconds"] > 0
    assert "seconds" not in (tmp_path / "journal.jsonl").read_text()


def test_pens_reports_whom_it_found() -> None:
    settings = quick("pens", rounds=12)
    found = simulate(settings, nodes=12, load=toy).neighbour_precision
    assert found is not None
    assert found.precision is not None
    assert 0.0 <= found.precision <= 1.0


def test_what_was_sent_is_what_was_received_when_nothing_goes_wrong() -> None:
    summary = small("el")
    sent, got = (sum(getattr(n, f"models_{way}") for n in summary.nodes) for way in ("sent", "received"))
    assert sent == got == 8 * 4 * 6 + 8 * 7  # a degree of 4 in six rounds, and everybody with everybody
    assert summary.models_lost == 0
    assert sum(n.bytes_sent for n in summary.nodes) == sent * 20


def test_an_earlier_run_stays_when_a_new_one_fails(tmp_path: Path) -> None:
    small("local", tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes(), (tmp_path / "summary.json").read_bytes()
    policy = PolicySettings(name="tests.unit.sim.endless_policy:Endless")
    with pytest.raises(SimulationStuck):
        simulate(Settings(rounds=1, policy=policy), nodes=2, out=tmp_path, load=toy)
    assert before == ((tmp_path / "journal.jsonl").read_bytes(), (tmp_path / "summary.json").read_bytes())


def test_progress_counts_the_rounds_of_all_nodes() -> None:
    seen: list[Progress] = []
    small("local", nodes=3, progress=seen.append)
    assert [p.rounds_done for p in seen] == list(range(1, 19))
    assert {p.rounds_total for p in seen} == {18}
    assert seen[-1].virtual_seconds >= seen[0].virtual_seconds > 0


def test_in_a_big_run_single_messages_are_written_only_when_asked_for(tmp_path: Path) -> None:
    def events(out: Path) -> set[str]:
        return {json.loads(line)["event"] for line in (out / "journal.jsonl").read_text().splitlines()}

    settings = Settings(rounds=1, policy=PolicySettings.model_validate({"name": "el", "degree": 1}))
    for name, level in (("few", None), ("all", "messages")):
        simulate(settings, nodes=101, out=tmp_path / name, load=toy, level=level)  # type: ignore[arg-type]
    assert events(tmp_path / "few") == {"started", "round", "finished"}
    assert events(tmp_path / "all") == {"started", "round", "finished", "sent", "taken"}


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --rounds"):
        simulate(quick("local", rounds=None), nodes=2)
    with pytest.raises(ConfigError, match="did you mean 'pens'"):
        simulate(quick("penz"), nodes=2)
    with pytest.raises(ConfigError, match="no node 'n009'"):
        small("local", tmp_path / "new", faults=[Crash(1.0, node_ids(10)[9])])
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot create"):
        small("local", tmp_path / "file")
    assert list((tmp_path / "new").iterdir()) == []


# -- real learning -----------------------------------------------------------------------------------------------


def test_real_training_gives_the_same_journal_too(tmp_path: Path) -> None:
    for i in (0, 1):
        simulate(quick("pens", rounds=2), nodes=4, out=tmp_path / str(i), faults=[Crash(3.0, B)])
    one, two = ((tmp_path / str(i) / "journal.jsonl").read_bytes() for i in (0, 1))
    assert one == two


def test_nodes_of_digits_learn() -> None:
    summary = simulate(quick("el", rounds=8), nodes=4)
    assert summary.accuracy is not None
    assert summary.accuracy > 0.5
    assert sorted(summary.by_cluster) == [0, 1]


@pytest.mark.slow
def test_a_thousand_nodes_fit_in_one_process(tmp_path: Path) -> None:
    code = (
        "import resource; from pathlib import Path; from pfl_node.sim import simulate\n"
        "from tests.unit.sim.test_simulate import quick; import sys\n"
        "s = simulate(quick('gossip', rounds=3), nodes=1000, out=Path(sys.argv[1]))\n"
        "print(len(s.nodes), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    nodes, megabytes = map(int, done.stdout.split())
    assert nodes == 1000
    assert megabytes < 2000
