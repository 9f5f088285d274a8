"""What `pfl-node watch` says about a swarm of separate processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfl_node.settings import Settings
from pfl_node.swarm.baseline import LocalRun
from pfl_node.swarm.watched_swarm import WatchedSwarm, last_figures

KINDS = {0: "upright", 1: "upside down"}
SETTINGS = Settings.model_validate({"rounds": 20, "policy": {"name": "pens"}})


def row(
    number: int, *, state: str = "alive", round: int = 0, role: str = "node", run: str = "default"
) -> dict[str, Any]:
    return {"id": f"n{number}", "name": f"node-{number}", "state": state, "round": round, "role": role, "run": run}


def status(cluster: int, accuracy: float) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "measured": {"test": {"accuracy": accuracy, "loss": 0.5}},
        "models_sent": {"n1": 3},
    }


def two_clusters(*rounds: int, state: str = "alive") -> WatchedSwarm:
    swarm = WatchedSwarm(SETTINGS, KINDS)
    swarm.members(row(i, round=round, state=state) for i, round in enumerate(rounds))
    for i in range(len(rounds)):
        swarm.status(f"n{i}", status(i % 2, 0.8 if i % 2 else 0.6))
    return swarm


def test_before_the_rounds_it_says_who_has_joined() -> None:
    swarm = WatchedSwarm(SETTINGS, KINDS)
    swarm.members([row(1), row(2), row(3, role="bootstrap"), row(4, run="other")])
    line = swarm.line(None)
    assert line == "2 nodes joined; others may still load torch; the rounds begin when nobody new comes"


def test_a_line_has_nodes_rounds_and_accuracy_together_and_alone_by_cluster() -> None:
    swarm = two_clusters(3, 4, 5, 4)
    together = "70.0 % (upright 60.0 %, upside down 80.0 %)"
    assert swarm.line(None) == f"4 nodes present; round 3 to 5 of 20; test accuracy {together}"
    alone = LocalRun(0.5, None, {0: 0.4, 1: 0.6})
    assert swarm.line(alone).endswith(f"together {together}, alone 50.0 % (upright 40.0 %, upside down 60.0 %)")


def test_those_that_are_done_or_dead_are_counted() -> None:
    swarm = two_clusters(7, 9)
    swarm.members([row(0, round=20, state="left"), row(5, round=2, state="dead")])
    assert swarm.line(None).startswith("1 node present, 1 done, 1 dead; round 2 to 20 of 20; ")


def test_it_is_over_when_everyone_has_left_after_the_last_round() -> None:
    swarm = two_clusters(20, 20)
    assert not swarm.over
    swarm.members([row(0, round=20, state="left"), row(1, round=20, state="left")])
    assert swarm.over
    assert not two_clusters(3, 4, state="dead").over


def test_the_last_figures_are_those_of_the_journals(tmp_path: Path) -> None:
    folder = tmp_path / "pfl-data" / "node-1"
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"event": "started", "node": "n0", "cluster": 1},
        {"event": "round", "round": 18, "test_accuracy": 0.7},
        {"event": "round", "round": 19},
        {"event": "finished", "round": 20, "how": "done", "test_accuracy": 0.9, "test_loss": 0.2},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "journal.jsonl").write_text("{broken")
    found = last_figures(tmp_path)
    assert found == {"n0": {"cluster": 1, "round": 20, "test_accuracy": 0.9, "test_loss": 0.2}}
    swarm = two_clusters(19, 20)
    swarm.ended(found)
    assert swarm.nodes["n0"].accuracy == 0.9


def test_the_outcome_is_that_of_a_swarm() -> None:
    outcome = two_clusters(20, 20, 20).outcome(90.0)
    assert outcome.rounds_done == (20, 20)
    assert outcome.by_cluster == {0: 0.6, 1: 0.8}
    assert outcome.models_sent == 9
    assert outcome.unfinished == 0
