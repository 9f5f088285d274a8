"""`train.patience` stops nodes of any policy, and their peers continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import ConfigError
from pfl_node.policies import POLICIES
from pfl_node.settings import Settings
from tests.unit.sim.toy_swarms import Ran, Together, ran

QUICK: dict[str, dict[str, Any]] = {
    "gossip": {"n_peers": 2, "quiet": 2.0},
    "pens": {"n_sampled": 3, "m": 1, "T": 2, "n_peers": 2, "quiet": 2.0},
}
ROUNDS = 80


def patient(folder: Path, policy: Any, patience: int = 2, **given: Any) -> Ran:
    settings = Settings.model_validate({"train": {"patience": patience}, **given})
    options = QUICK.get(policy, {}) if isinstance(policy, str) else {}
    cls = POLICIES[policy] if isinstance(policy, str) else policy
    return ran(folder, cls, nodes=4, rounds=ROUNDS, settings=settings, options=options.items())


@pytest.mark.parametrize("policy", ["local", "el", "fedavg", "facade", "gossip", "pens", "random", "dac"])
def test_a_node_of_any_policy_stops_early_with_its_best_model(tmp_path: Path, policy: str) -> None:
    swarm = patient(tmp_path, policy)
    stopped = {row["node"]: row for row in swarm.of("stopped")}
    assert stopped
    for row in swarm.of("finished"):
        figures = [r["val_accuracy"] for r in swarm.of("round", row["node"])]
        assert row["val_accuracy"] == max(figures)
        if row["node"] in stopped:
            assert figures.index(max(figures)) == stopped[row["node"]]["back_to"]
            assert len(figures) < ROUNDS
    assert len(swarm.of("finished")) == 4


def test_nobody_waits_in_lockstep_for_a_node_that_stopped_early(tmp_path: Path) -> None:
    swarm = patient(tmp_path, Together)
    assert swarm.of("stopped")
    assert not swarm.of("given_up")
    assert not swarm.of("catching_up")


def test_patience_needs_validation_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"add val to eval.on"):
        patient(tmp_path, "local", eval={"on": ("test",)})
