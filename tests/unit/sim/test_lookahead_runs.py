"""`train.lookahead` in whole simulations: what nodes train, segments and restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.model import Model
from pfl_node.settings.load import load_settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.simulate import simulate
from pfl_node.types import PeerId
from tests.toy import LAYOUT, ToyLearner

OFF: dict[str, Any] = {"train.lookahead": 0.0}
SHIFTS: list[bool] = []  # for each training: did it start beyond its model?


class AheadLearner(ToyLearner):
    """Starts a training where it is told to."""

    def train(self, model: Model, *, past: Model | None = None, lookahead: float = 0.0, **options: Any) -> Model:
        SHIFTS.append(past is not None)
        if past is not None:
            model = Model(LAYOUT, model.vector + np.float32(lookahead) * (model.vector - past.vector))
        return super().train(model, **options)


def ahead(index: int, node: PeerId) -> Any:
    return AheadLearner(point=float(index))


def ran(
    out: Path, policy: str = "el", faults: tuple[str, ...] = (), every: int | None = None, **told: Any
) -> bytes:
    SHIFTS.clear()
    more = {"store.checkpoint_every": 1, "policy.name": policy, "train.lookahead": 0.5, "rounds": 6, **told}
    chosen: Any = parse_faults(faults, node_ids(4))
    simulate(load_settings(overrides=more), nodes=4, segment=every, out=out, load=ahead, faults=chosen)
    return (out / "journal.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("policy", "options"),
    [("el", {}), ("dpsgd", {}), ("deprl", {}), ("facade", {"policy.warmup": 2}), ("fedavg", {"policy.C": 1.0})],
)
def test_after_the_first_round_averages_are_trained_from_beyond(
    tmp_path: Path, policy: str, options: dict[str, Any]
) -> None:
    off = ran(tmp_path / "off", policy, **options, **OFF)
    assert not any(SHIFTS)
    on = ran(tmp_path / "on", policy, **options)
    assert (SHIFTS[:4], sum(SHIFTS)) == ([False] * 4, 5 * 4)  # in five of six rounds, on each node
    assert on != off


def test_local_has_no_averages_and_learns_as_before(tmp_path: Path) -> None:
    assert ran(tmp_path / "on", "local") == ran(tmp_path / "off", "local", **OFF)


@pytest.mark.parametrize("policy", ["el", "facade", "fedavg"])
def test_a_run_in_segments_is_the_same_run(tmp_path: Path, policy: str) -> None:
    whole = ran(tmp_path / "whole", policy, every=6)
    assert ran(tmp_path / "parts", policy, every=2) == whole


def test_a_restarted_node_starts_beyond_the_average_of_its_checkpoint(tmp_path: Path) -> None:
    journal = ran(tmp_path, faults=("crash:n001@0.4", "restart:n001@0.6"), rounds=20)
    rows = [json.loads(line) for line in journal.splitlines()]
    (restarted,) = (row for row in rows if row["event"] == "restarted")
    assert restarted["round"] > 0
    assert SHIFTS.count(False) == 4  # the first training of each node, and none after the restart
