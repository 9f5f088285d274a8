"""What the simulator used to do otherwise than a daemon, and now does alike because it runs the same node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_node.node.ports import Job
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs, seconds_of
from pfl_node.sim.faults import Crash, Delay, Restart, Slow
from pfl_node.steps import Ask, Fetch, Gather, Peers, Publish, Record, Report, Send, Sleep, Train
from tests.toy import constant
from tests.unit.sim.toy_swarms import A, B, C, D, ran


def told(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


class Scripted(Policy):
    """A does one thing, the others another."""

    lockstep = True

    async def main(self) -> None:
        await (self.leader() if self.me == A else self.follower())

    async def leader(self) -> None: ...

    async def follower(self) -> None: ...


def test_a_peer_that_was_given_up_still_counts_for_the_quorum(tmp_path: Path) -> None:
    """Two of four are enough. One is here when the time of all others is over: nobody is left to wait for, but a
    quorum there is not, so the wait lasts until then."""

    class Waits(Scripted):
        async def leader(self) -> None:
            offers = await Gather([B, C, D], 0)
            await Record("got", {"from": [o.sender for o in offers], "now": await Sleep(0)})

        async def follower(self) -> None:
            await Sleep({B: 1.0, C: 3.0, D: 60.0}[self.me])
            await Send([A], self.model, round=0)
            await Sleep(60.0)

    half = told(round={"quorum": 0.5, "patience": 8.0})
    (row,) = ran(tmp_path, Waits, nodes=4, settings=half).of("got")
    assert (row["from"], round(row["now"])) == ([B, C], 3)
    most = told(round={"quorum": 0.9, "patience": 8.0})
    (row,) = ran(tmp_path, Waits, nodes=4, settings=most).of("got")
    assert (row["from"], round(row["now"])) == ([B, C], 8)


def test_a_peer_that_comes_back_while_a_round_waits_is_waited_for_again(tmp_path: Path) -> None:
    class Waits(Scripted):
        async def leader(self) -> None:
            offers = await Gather([B, C], 0, patience=100.0)
            await Record("got", {"from": [o.sender for o in offers]})

        async def follower(self) -> None:
            await Sleep(25.0 if self.me == B else 40.0)
            await Send([A], self.model, round=0)
            await Sleep(60.0)

    (row,) = ran(tmp_path, Waits, nodes=3, faults=[Crash(1.0, B), Restart(15.0, B)]).of("got")
    assert row["from"] == [B, C]


def test_what_is_rumoured_of_a_peers_round_is_believed_only_as_long_as_it_is_told(tmp_path: Path) -> None:
    """B was in round 3, crashed before its checkpoint and begins anew: A waits for its model of round 0."""

    class Waits(Scripted):
        async def leader(self) -> None:
            await Sleep(30.0)
            offers = await Gather([B], 0, patience=100.0)
            await Record("got", {"from": [o.sender for o in offers]})

        async def follower(self) -> None:
            if self.me == B and await Sleep(0) < 10.0:
                for t in range(3):
                    await Report(t, self.model)
                    self.round += 1
            await Sleep(40.0)
            if self.me == B:
                await Send([A], self.model, round=0)
            await Sleep(60.0)

    every = told(store={"checkpoint_every": 10})
    (row,) = ran(tmp_path, Waits, rounds=50, settings=every, faults=[Crash(2.0, B), Restart(20.0, B)]).of("got")
    assert row["from"] == [B]


def test_nothing_is_taken_before_a_node_is_ready(tmp_path: Path) -> None:
    """A node that has not come yet is not reached, one that has come takes models before its policy begins."""

    class Early(Scripted):
        async def leader(self) -> None:
            await Record("pushed", {"to": await Send([B], self.model, round=0), "now": await Sleep(0)})

        async def follower(self) -> None:
            await Record("began", {"now": await Sleep(0)})
            await Record("got", {"from": [o.sender for o in await Gather([A], 0)]})

    slow = Costs(start=50.0, jitter=0.0)
    run = ran(tmp_path, Early, nodes=2, costs=slow, seed=3)
    sent, began = run.of("pushed")[0], run.of("began")[0]
    assert sent["to"] == [B]
    assert sent["now"] < began["now"]
    assert run.of("got")[0]["from"] == [A]


def test_a_peer_may_call_so_often_in_a_minute_and_no_more(tmp_path: Path) -> None:
    class Calls(Scripted):
        async def leader(self) -> None:
            await Sleep(1.0)
            answers = [len(await Fetch([B])) for _ in range(5)]
            await Sleep(61.0)
            await Record("got", {"at once": answers, "later": len(await Fetch([B]))})

        async def follower(self) -> None:
            await Publish(self.model, 0)
            await Sleep(90.0)

    run = ran(tmp_path, Calls, nodes=2, settings=told(serve={"fetches_per_minute": 3}))
    (row,) = run.of("got")
    assert (row["at once"], row["later"]) == ([1, 1, 1, 0, 0], 1)
    assert run.swarm.refused() == {"flood": 2}


def test_a_peer_may_have_so_much_scored_in_a_minute_and_no_more(tmp_path: Path) -> None:
    """A score costs its job's time, here 0.4 s: 10 samples of 0.4 ms on a node 100 times slower. One peer may use
    half of the time for scoring."""

    class Asks(Scripted):
        async def leader(self) -> None:
            await Record("got", {"scores": [len(await Ask([B], self.model)) for _ in range(4)]})

        async def follower(self) -> None:
            await Sleep(90.0)

    run = ran(tmp_path, Asks, nodes=2, settings=told(serve={"scoring": 1.0}), faults=[Slow(B, 100.0)])
    assert run.of("got")[0]["scores"] == [1, 1, 0, 0]


def test_the_models_that_wait_for_a_node_have_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    class Sends(Scripted):
        async def leader(self) -> None:
            await Sleep(30.0)

        async def follower(self) -> None:
            took = [bool(await Send([A], self.model, round=t)) for t in range(3)]
            await Record("took", {"took": took})

    two = told(serve={"waiting_per_peer": 2 * constant(0.0).nbytes})
    run = ran(tmp_path, Sends, nodes=2, settings=two)
    (row,) = run.of("took")
    assert row["took"] == [True, True, False]
    assert run.swarm.refused() == {"flood": 1}


def test_scoring_for_peers_delays_a_nodes_own_training(tmp_path: Path) -> None:
    class Busy(Scripted):
        async def leader(self) -> None:
            await Train(self.model, steps=100)  # a second
            await Record("trained", {"now": await Sleep(0)})
            await Sleep(5.0)

        async def follower(self) -> None:
            await Sleep(0.1)
            await Ask([A], self.model)  # 10 samples: 4 ms
            await Sleep(5.0)

    run = ran(tmp_path, Busy, nodes=6)
    assert run.of("trained")[0]["now"] == pytest.approx(1.0 + 5 * 0.004)


def test_the_deadline_of_a_call_adapts_to_the_link(tmp_path: Path) -> None:
    """After a call that took too long the next one has more time."""

    class Calls(Scripted):
        async def leader(self) -> None:
            took = []
            for _ in range(3):
                before = await Sleep(0)
                await Fetch([B])
                took.append(await Sleep(0) - before)
            await Record("took", {"seconds": took})

        async def follower(self) -> None:
            await Publish(constant(1.0), 0)
            await Sleep(200.0)

    slow = told(wire={"base_timeout": 1.0, "min_bandwidth": 4.0})  # 20 bytes: 10 s
    run = ran(tmp_path, Calls, nodes=2, settings=slow, faults=[Delay(30.0)])
    first, second, third = run.of("took")[0]["seconds"]
    assert first == pytest.approx(11.0)
    assert second == pytest.approx(21.0)
    assert third == pytest.approx(41.0)


def test_a_fetch_that_is_refused_counts_against_its_caller(tmp_path: Path) -> None:
    class Misfit(Scripted):
        async def leader(self) -> None:
            await Sleep(1.0)
            for _ in range(40):
                await Fetch([B])
            await Record("asked", {"scores": len(await Ask([B], self.model))})

        async def follower(self) -> None:
            await Sleep(90.0)

    strict = told(serve={"fetches_per_minute": 1}, guard={"limit": 0.1})
    run = ran(tmp_path, Misfit, nodes=2, settings=strict)
    assert run.of("quarantined", B)
    assert run.of("asked")[0]["scores"] == 0


def test_a_training_costs_what_the_learner_says_it_takes(tmp_path: Path) -> None:
    """Not what the settings say: a task has values of its own."""

    class Learner:
        samples, predictions = 10, None

        def batches(self, epochs: float | None = None, steps: int | None = None) -> int:
            return steps or (20 if epochs is None else round(20 * epochs))

    learner: Any = Learner()
    costs = Costs(batch=0.5)
    assert seconds_of(Job("train", constant(1.0), {"epochs": None, "steps": None}), costs, learner) == 10.0
    assert seconds_of(Job("train", constant(1.0), {"epochs": None, "steps": 3}), costs, learner) == 1.5
    for samples, batches in ((None, 1), (5, 10), (10, 20), (99, 20)):
        job = Job("gradient", constant(1.0), {"batch": 0, "samples": samples})
        assert seconds_of(job, costs, learner) == 0.5 * batches


def test_a_node_that_fell_behind_catches_up_to_the_last_round_at_most(tmp_path: Path) -> None:
    class InStep(Policy):
        lockstep = True

        async def main(self) -> None:
            for t in self.remaining():
                self.model = await Train(self.model, steps=100)
                peers = await Peers()
                await Send(peers, self.model, round=t)
                await Gather(peers, t)
                await Report(t, self.model)

    run = ran(tmp_path, InStep, nodes=4, rounds=20, faults=[Slow(B, 60.0, 3.0, 40.0)])
    assert all(row["swarm"] <= 20 for row in run.of("catching_up"))
    assert {row["round"] for row in run.of("finished")} == {20}
