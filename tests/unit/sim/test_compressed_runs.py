"""Simulated runs with `wire.compress`: they finish, send fewer bytes, and continue after a break as if there was
none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_node.node import async_compressor
from pfl_node.settings import Settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.testing.schedules import draw
from pfl_node.testing.schedules import run as run_schedule
from tests.unit.sim.test_segments import EVERY, KNOBS, NODES, ROUNDS, Cut, facts
from tests.unit.sim.toy_swarms import toy

HOWS = ("top:0.4", "fragments:4/2")
POLICIES = ("el", "dpsgd", "facade", "fedavg", "pens", "random", "dac", "deprl", "gossip", "feded")


def run(
    policy: str,
    how: str,
    out: Path | None,
    *,
    segment: int | None = None,
    cut_after: int | None = None,
    **more: Any,
) -> Summary:
    wire = {"compress": how, "encoding": "int8"}
    told = {"policy": {"name": policy, **KNOBS.get(policy, {})}, "rounds": ROUNDS, "wire": wire}

    def progress(now: Progress) -> None:
        if cut_after is not None and now.rounds_done > cut_after:
            raise Cut

    settings = Settings.model_validate(told)
    return simulate(settings, nodes=NODES, segment=segment, out=out, progress=progress, load=toy, **more)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_kind_of_policy_finishes_with_partial_models_and_refuses_none(policy: str, how: str) -> None:
    summary, whole = run(policy, how, None), run(policy, "none", None)
    assert all(n.rounds >= ROUNDS for n in summary.nodes)
    assert not {"layout", "garbage", "not_finite"} & set(summary.refused)
    if policy != "feded":  # its messages are predictions
        assert summary.bytes_sent < whole.bytes_sent


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", ["choco", "sgp", "dfedpgp"])
def test_a_policy_whose_receivers_need_a_whole_model_sends_it(policy: str, how: str) -> None:
    """A neighbour of `choco` needs all of x_hat before it can use changes of it, which are partial anyway. The
    weight of push-sum holds for all numbers of a message."""
    found = [[n.loss for n in run(policy, compress, None).nodes] for compress in (how, "none")]
    assert found[0] == found[1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", ["el", "random", "pens", "facade"])
def test_a_run_in_segments_that_was_broken_off_ends_as_one_that_was_not(
    tmp_path: Path, policy: str, how: str
) -> None:
    run(policy, how, tmp_path / "whole", segment=EVERY)
    with pytest.raises(Cut):
        run(policy, how, tmp_path / "broken", segment=EVERY, cut_after=NODES * EVERY + 2)
    run(policy, how, tmp_path / "broken", segment=EVERY)
    assert facts(tmp_path / "broken") == facts(tmp_path / "whole")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", ["el", "random", "pens"])
def test_a_run_does_not_depend_on_which_models_are_large(
    tmp_path: Path, policy: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon compresses large models in a thread; a simulation has no threads."""
    run(policy, how, tmp_path / "small")
    monkeypatch.setattr(async_compressor, "LARGE", 1)
    run(policy, how, tmp_path / "large")
    assert facts(tmp_path / "small") == facts(tmp_path / "large")


def test_a_node_that_crashes_and_one_that_joins_late_end_close_to_the_others() -> None:
    faults = parse_faults(("crash:n001@3", "restart:n001@6", "join:n002@5", "loss:0.1"), node_ids(NODES))
    summary = run("el", "top:0.4", None, faults=faults)
    losses = [n.loss for n in summary.nodes if n.loss is not None]
    assert len(losses) == NODES
    assert max(losses) < 2 * min(losses) + 0.5


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", ["el", "fedavg", "pens", "facade", "random", "dac"])
def test_the_rules_hold_under_faults(policy: str, how: str) -> None:
    for seed in range(2):
        trial = run_schedule(draw(seed, (policy,)), (f"wire.compress={how}",))
        assert not trial.broken, trial.broken
