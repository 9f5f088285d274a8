"""The pace of rounds in simulated swarms, in virtual time: how often, in which hours, and with whom."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import SimulationStuck
from pfl_node.policies import load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.faults import Crash, Fault, Join, Skew
from pfl_node.types import PeerId
from tests.unit.sim.toy_swarms import A, B, C, Ran, Together, ran

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MEGABYTE = 1e6


def paced(
    folder: Path, policy: type[Policy] = Together, *faults: Fault, rounds: int = 6, nodes: int = 3, **given: Any
) -> Ran:
    options = given.pop("options", ())
    settings = Settings.model_validate({"round": given})
    return ran(folder, policy, rounds=rounds, nodes=nodes, faults=faults, settings=settings, options=options)


def times(run: Ran, node: PeerId = A) -> list[float]:
    return [row["time"] for row in run.of("round", node)]


def got(run: Ran, node: PeerId = A) -> list[int]:
    return [len(row["got"]) for row in run.of("round", node)]


def models_a_day(run: Ran, node: PeerId, days: float) -> float:
    traffic = run.node(node).traffic
    return (traffic.models_sent + traffic.models_received) / days


def test_rounds_begin_at_the_multiples_of_round_every_and_all_models_arrive(tmp_path: Path) -> None:
    run = paced(tmp_path, every="10m")
    begun = [time - time % MINUTE for time in times(run)]
    assert begun == [0, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE, 40 * MINUTE, 50 * MINUTE]
    assert got(run) == [2] * 6


def test_a_week_of_el_as_in_the_guide_costs_less_than_a_gigabyte_a_day_for_a_model_of_a_megabyte(
    tmp_path: Path,
) -> None:
    """docs/operate.md: three sites, every 20 minutes, a model to and from both others: 72 * 4 MB = 288 MB."""
    run = paced(tmp_path, load_policy("el"), rounds=7 * 72, every="20m")
    assert run.seconds == pytest.approx(7 * DAY, abs=20 * MINUTE)
    for node in (A, B, C):
        assert models_a_day(run, node, 7) * MEGABYTE == pytest.approx(288 * MEGABYTE, rel=0.01)


def test_a_day_of_el_with_more_sites_costs_no_more_than_four_neighbours(tmp_path: Path) -> None:
    """docs/operate.md: 72 * 8 MB = 576 MB."""
    run = paced(tmp_path, load_policy("el"), nodes=6, rounds=72, every="20m")
    for node in run.swarm.world.nodes:
        assert models_a_day(run, node, 1) * MEGABYTE == pytest.approx(576 * MEGABYTE, rel=0.01)


def test_a_week_of_pens_sends_as_many_models_a_round_as_without_a_pace(tmp_path: Path) -> None:
    """Nodes push every second until they have merged, so a node sends about n_sampled models in a round."""
    options = [("n_sampled", 4), ("T", 10), ("n_peers", 4), ("quiet", 5.0)]
    run = paced(tmp_path, load_policy("pens"), nodes=4, rounds=7 * 24, every="1h", options=options)
    assert run.seconds == pytest.approx(7 * DAY, abs=HOUR)
    for node in run.swarm.world.nodes:
        assert models_a_day(run, node, 7) / 24 < 2 * 12


def test_rounds_begin_only_in_the_hours_of_the_site(tmp_path: Path) -> None:
    run = paced(tmp_path, rounds=40, every="1h", hours="20:00-06:00")
    hours = [datetime.fromtimestamp(time, UTC).hour for time in times(run)]
    assert set(hours) == {20, 21, 22, 23, 0, 1, 2, 3, 4, 5}
    assert run.seconds == pytest.approx(4 * DAY, abs=6 * HOUR)
    assert got(run) == [2] * 40


def test_a_node_that_pauses_at_night_goes_on_in_the_round_of_the_swarm(tmp_path: Path) -> None:
    run = paced(tmp_path, Together, Join(12.5 * HOUR, C), rounds=30, every="1h")
    late = run.of("round", C)
    assert [row["round"] for row in late] == list(range(13, 30))
    assert got(run, C) == [2] * 17


def test_nodes_whose_clocks_differ_by_seconds_use_all_models(tmp_path: Path) -> None:
    run = paced(tmp_path, Together, Skew(B, ahead=3.0, at=0.0), rounds=12, every="10m")
    assert got(run, A)[1:] == [2] * 11
    assert got(run, B)[1:] == [2] * 11


def test_a_node_without_peers_waits_until_one_comes(tmp_path: Path) -> None:
    run = paced(tmp_path, Together, Join(HOUR / 2, B), nodes=2, rounds=3, alone="wait")
    assert min(times(run, A)) >= HOUR / 2
    assert got(run, A) == [1, 1, 1]


def test_a_node_whose_peers_have_died_waits_and_one_that_may_train_alone_goes_on(tmp_path: Path) -> None:
    crash = Crash(5.5 * MINUTE, B)
    trains = paced(tmp_path, Together, crash, nodes=2, rounds=30, every="1m", alone="train")
    assert len(times(trains, A)) == 30
    with pytest.raises(SimulationStuck, match=r"n000 waits for round 6 \(round.alone\)"):
        paced(tmp_path, Together, crash, nodes=2, rounds=30, every="1m", alone="wait")


@pytest.mark.parametrize("policy", ["el", "pens", "random", "local", "facade"])
def test_a_run_whose_peers_are_done_ends(tmp_path: Path, policy: str) -> None:
    run = paced(tmp_path, load_policy(policy), rounds=3, nodes=3, every="1m", alone="wait")
    all_reduce = int(policy == "facade")
    assert [len(times(run, node)) for node in (A, B, C)] == [3 + all_reduce] * 3


def test_a_single_node_trains_alone_unless_the_settings_say_that_it_waits(tmp_path: Path) -> None:
    assert len(times(paced(tmp_path, load_policy("el"), nodes=1))) == 6
    assert len(times(paced(tmp_path, load_policy("local"), nodes=1, alone="wait"))) == 6
