"""Swarms with faults: crashes, restarts, late joiners, partitions, loss, slow nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import ConfigError, SimulationStuck
from pfl_node.node.ports import Plan
from pfl_node.node.recorder import Recorder
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.settings import EvalSettings, Settings, StoreSettings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.event_loop import VirtualLoop
from pfl_node.sim.faults import Crash, Delay, Fault, Join, Loss, Partition, Restart, Slow
from pfl_node.sim.simulation import Simulation
from pfl_node.steps import Ask, Average, Fetch, Gather, Peers, Publish, Record, Report, Send, Sleep, Train
from pfl_node.types import Offer, PeerId
from tests.unit.sim.toy_swarms import EVEN, A, B, C, D, Ran, Together, ran, toy

ROUND = 1.0  # seconds that a round of training takes in Slowly


class Slowly(Together):
    """Rounds of at least one second, so that faults happen within a round."""

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model, steps=100)
            await self.meet(t)

    async def meet(self, t: int) -> None:
        peers = await Peers()
        await Send(peers, self.model, round=t)
        offers = await Gather(peers, t)
        self.model = await Average(self.model, [o.model for o in offers])
        await Report(t, self.model, {"got": [o.sender for o in offers]})


class Chatty(Policy):
    """Pushes to a random peer every second and merges every offer."""

    async def main(self) -> None:
        await Publish(self.model, self.round)
        while self.more:
            await Sleep(self.rng.uniform(0.5, 1.5))
            if peers := await Peers():
                await Send([self.rng.choice(peers)], self.model)
                await Fetch([self.rng.choice(peers)])
                await Ask([self.rng.choice(peers)], self.model)
            await Report(self.round, self.model)
            self.round += 1

    async def on_model(self, offer: Offer) -> None:
        self.model = await Train(offer.model)


def got(run: Ran, node: PeerId) -> dict[int, list[str]]:
    return {r["round"]: r["got"] for r in run.of("round", node)}


# -- crash and restart -------------------------------------------------------------------------------------------


def test_a_peer_that_dies_mid_round_is_left_out_of_the_average(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=3, rounds=5, faults=[Crash(2.5, C)])
    assert [len(g) for g in got(run, A).values()] == [2, 2, 1, 1, 1]
    assert run.of("round", C)[-1]["round"] == 1
    assert (run.node(C).state, run.node(A).state) == ("crashed", "left")
    assert [r["time"] for r in run.of("crashed")] == [2.5]


def test_the_dead_are_waited_for_only_until_they_are_known_to_be_dead(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=3, rounds=5, faults=[Crash(2.5, C)])
    times = [r["time"] for r in run.of("round", A)]
    pauses = [after - before for before, after in pairwise(times)]
    assert 5.0 < pauses[1] + pauses[2] < 12.5  # A and B do not notice it at the same time
    assert pauses[3] == pytest.approx(ROUND, abs=0.1)


class Counting(Slowly):
    """Counts its rounds in a kept attribute and in one that is not kept."""

    keeps = ("rounds_kept",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.rounds_kept: list[int] = []
        self.rounds_forgotten: list[int] = []

    async def meet(self, t: int) -> None:
        self.rounds_kept.append(t)
        self.rounds_forgotten.append(t)
        await super().meet(t)
        await Record("memory", {"kept": list(self.rounds_kept), "forgotten": list(self.rounds_forgotten)})


def test_a_restarted_node_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    every = Settings(store=StoreSettings(checkpoint_every=2))
    faults = (Crash(3.5, A), Restart(30.0, A))
    run = ran(tmp_path, Counting, nodes=1, rounds=5, faults=faults, settings=every)
    assert run.of("restarted")[0]["round"] == 2  # rounds 0 and 1 were kept, 2 was lost
    assert [r["round"] for r in run.of("round", A)] == [0, 1, 2, 2, 3, 4]
    memory = run.of("memory", A)[-1]
    assert (memory["kept"], memory["forgotten"]) == ([0, 1, 2, 3, 4], [2, 3, 4])


def test_the_restored_model_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    every = Settings(store=StoreSettings(checkpoint_every=1))
    run = ran(tmp_path, Slowly, nodes=1, rounds=4, faults=[Crash(2.5, A), Restart(5.0, A)], settings=every)
    whole = ran(tmp_path, Slowly, nodes=1, rounds=4)
    losses = {r["round"]: r["test_loss"] for r in run.of("round")}
    assert losses == {r["round"]: r["test_loss"] for r in whole.of("round")}


def test_without_a_checkpoint_a_restarted_node_begins_anew(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=1, rounds=3, faults=[Crash(1.5, A), Restart(5.0, A)])
    assert [r["round"] for r in run.of("round")] == [0, 0, 1, 2]


def test_a_restarted_node_of_a_lockstep_policy_goes_on_where_the_others_are(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=3, rounds=30, faults=[Crash(2.5, C), Restart(20.5, C)])
    rounds = [r["round"] for r in run.of("round", C)]
    begin = run.of("started", C)[-1]["round"]
    assert begin > 5
    assert rounds == [0, 1, *range(begin, 30)]
    assert len(got(run, A)[29]) == 2


def test_a_crash_of_a_node_that_is_done_changes_nothing(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=2, rounds=2, faults=[Crash(50.0, A), Restart(60.0, A)])
    assert run.of("crashed") == run.of("restarted") == []
    assert run.seconds == 60.0  # the run waits for scheduled faults


def test_a_message_in_flight_to_a_node_that_crashes_is_lost(tmp_path: Path) -> None:
    class Once(Policy):
        async def main(self) -> None:
            if self.me == A:
                await Record("answer", {"taken": await Send([B], self.model)})
            await Sleep(30.0)

    run = ran(tmp_path, Once, nodes=2, faults=[Crash(0.001, B)])
    assert run.of("answer")[0]["taken"] == []
    assert run.node(A).traffic.models_lost == 1


# -- join --------------------------------------------------------------------------------------------------------


def test_a_late_joiner_begins_in_the_swarms_round_and_is_heard(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=4, rounds=12, faults=[Join(5.5, D)])
    assert run.of("started", D)[0]["round"] == 5
    assert run.of("round", D)[-1]["round"] == 11
    assert [len(g) for g in got(run, A).values()][:5] == [2] * 5
    assert len(got(run, A)[11]) == 3


def test_a_late_joiner_of_a_policy_with_rounds_of_its_own_begins_at_zero(tmp_path: Path) -> None:
    run = ran(tmp_path, Chatty, nodes=3, rounds=20, faults=[Join(10.0, C)])
    assert run.of("started", C)[0]["round"] == 0
    assert len(run.of("round", C)) == 20


def test_somebody_who_joins_when_all_are_done_learns_alone(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=2, rounds=2, faults=[Join(100.0, B)])
    assert [r["round"] for r in run.of("round", B)] == [0, 1]
    assert got(run, B) == {0: [], 1: []}


# -- partition, loss, delay, slowness ----------------------------------------------------------------------------


def test_in_a_partition_each_side_goes_on_alone_and_afterwards_they_meet_again(tmp_path: Path) -> None:
    faults = [Partition(5.5, (frozenset((A, B)),), 40.0)]
    run = ran(tmp_path, Slowly, nodes=4, rounds=60, faults=faults)
    alone = [r["got"] for r in run.of("round", A) if 25.0 < r["time"] < 40.0]
    assert alone
    assert all(g == [B] for g in alone)
    assert got(run, A)[2] == got(run, A)[59] == [B, C, D]
    assert [r["event"] for r in run.rows if r["node"] is None] == ["partition", "healed"]


def test_with_loss_the_run_ends_and_what_was_lost_is_missing(tmp_path: Path) -> None:
    run = ran(tmp_path, Together, nodes=6, rounds=10, faults=[Loss(0.1)])
    assert all(n.state == "left" for n in run.swarm.world.nodes.values())
    lost = run.swarm.models_lost()
    assert lost > 0
    assert sum(len(r["got"]) for r in run.of("round")) <= 6 * 5 * 10 - lost


def test_when_everything_is_lost_nodes_learn_alone(tmp_path: Path) -> None:
    run = ran(tmp_path, Together, nodes=3, rounds=3, faults=[Loss(1.0)])
    assert [r["got"] for r in run.of("round")] == [[]] * 9


def test_a_slow_node_holds_up_a_lockstep_policy_but_is_not_left_behind(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=3, rounds=4, faults=[Slow(C, 3.0)])
    assert got(run, A) == {t: [B, C] for t in range(4)}
    assert run.seconds == pytest.approx(4 * 3 * ROUND, abs=0.3)


def test_a_node_that_is_too_slow_is_not_waited_for_and_catches_up(tmp_path: Path) -> None:
    run = ran(tmp_path, Slowly, nodes=3, rounds=60, faults=[Slow(C, 15.0, 0.0, 60.0)])
    rounds = [r["round"] for r in run.of("round", C)]
    assert rounds == sorted(rounds)
    assert len(rounds) < 60
    assert run.of("catching_up", C)
    assert len(got(run, A)[59]) == 2


def test_delay_makes_rounds_longer_and_loses_nothing(tmp_path: Path) -> None:
    slow = ran(tmp_path, Together, nodes=3, rounds=3, faults=[Delay(0.5)])
    fast = ran(tmp_path, Together, nodes=3, rounds=3)
    assert slow.seconds > fast.seconds + 3 * 0.9
    assert [r["got"] for r in slow.of("round", A)] == [r["got"] for r in fast.of("round", A)]


# -- what always holds -------------------------------------------------------------------------------------------

TROUBLE: tuple[Fault, ...] = (
    Loss(0.05),
    Crash(3.0, B),
    Restart(12.0, B),
    Crash(6.0, D),
    Join(4.0, C),
    Partition(14.0, (frozenset((A,)),), 22.0),
    Slow(A, 3.0, 5.0, 10.0),
    Delay(0.05, 8.0, 16.0),
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", [Together, Slowly, Chatty])
def test_everything_sent_was_received_refused_or_lost(tmp_path: Path, policy: type[Policy], seed: int) -> None:
    run = ran(tmp_path, policy, nodes=8, rounds=25, seed=seed, faults=TROUBLE, costs=Costs())
    traffic = [n.traffic for n in run.swarm.world.nodes.values()]
    sent = sum(t.models_sent for t in traffic)
    received = sum(t.models_received for t in traffic)
    refused = sum(t.refused.total() for t in traffic)
    assert sent == received + refused + sum(t.models_lost for t in traffic)
    assert sent > 100
    assert run.swarm.world.fabric.flying == 0
    events = Counter(r["event"] for r in run.rows)
    assert events["sent"] >= events["taken"] + events["refused"] + events["lost"] > 0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for policy in (Together, Slowly, Chatty):
        first, again, other = (
            ran(tmp_path, policy, nodes=8, rounds=20, seed=seed, faults=TROUBLE, costs=Costs()).text
            for seed in (3, 3, 4)
        )
        assert first == again
        assert first != other


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("policy", [Together, Slowly, Chatty])
def test_a_swarm_may_be_small(tmp_path: Path, policy: type[Policy], nodes: int) -> None:
    run = ran(tmp_path, policy, nodes=nodes, rounds=3)
    assert len(run.of("finished")) == nodes


def test_evaluation_comes_when_it_is_due_and_at_the_end(tmp_path: Path) -> None:
    run = ran(tmp_path, Together, nodes=2, rounds=5, settings=Settings(eval=EvalSettings(every=2)))
    assert ["test_accuracy" in r for r in run.of("round", A)] == [False, True, False, True, False]
    last = run.of("finished", A)[0]
    assert {"val_loss", "val_accuracy", "test_loss", "test_accuracy"} <= last.keys()


def test_a_fault_about_nobody_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node 'n003'"):
        ran(tmp_path, Together, nodes=3, faults=[Crash(1.0, D)])


# -- a run that fails --------------------------------------------------------------------------------------------


def fails(policy: type[Policy], error: type[Exception]) -> VirtualLoop:
    """The event loop of a run that failed."""
    with EventJournal(None) as journal:
        plan = Plan(policy, configure(policy, {}))
        swarm = Simulation(Settings(rounds=3), plan, toy, nodes=4, journal=journal, costs=EVEN)
        with pytest.raises(error):
            swarm.run()
    return swarm.world.clock


def test_a_node_whose_cleanup_fails_hides_no_error_and_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneFails(Policy):
        async def main(self) -> None:
            await Sleep(1.0 if self.me == A else 9.0)
            raise ZeroDivisionError

    async def finish(self: Recorder, how: str) -> None:
        if self.policy.me != A:
            raise OSError("no cleanup")

    monkeypatch.setattr(Recorder, "finish", finish)
    loop = fails(OneFails, ZeroDivisionError)
    assert loop.is_closed()
    assert not asyncio.all_tasks(loop)


def test_a_run_whose_clock_stands_still_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spins(Policy):
        async def main(self) -> None:
            while True:
                await Sleep(0.0)

    monkeypatch.setattr("pfl_node.sim.simulation.MAX_SPINS", 100)
    loop = fails(Spins, SimulationStuck)
    assert loop.is_closed()
    assert not asyncio.all_tasks(loop)
