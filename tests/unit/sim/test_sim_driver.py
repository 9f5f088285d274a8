"""Every step, answered in a simulation."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import SimulationStuck
from pfl_node.model import Entry, Layout, Model
from pfl_node.policies.base import Policy
from pfl_node.settings import RoundSettings, ServeSettings, Settings, TrainSettings
from pfl_node.sim.faults import Crash, Delay, Loss, Slow
from pfl_node.steps import (
    Ask,
    Average,
    Distill,
    Fetch,
    Fresh,
    Gather,
    Linger,
    Peers,
    Predict,
    Publish,
    Receive,
    Record,
    Report,
    Score,
    Send,
    Sleep,
    Step,
    Train,
)
from pfl_node.types import Offer
from tests.toy import constant
from tests.unit.sim.toy_swarms import A, B, C, D, Together, ran


class Scripted(Policy):
    """Node A runs one script, all others another."""

    async def main(self) -> None:
        await (self.leader() if self.me == A else self.follower())

    async def leader(self) -> None: ...

    async def follower(self) -> None:
        await Publish(self.model, round=0)
        await Sleep(60.0)


# -- time and peers --------------------------------------------------------------------------------------------


def test_sleep_takes_virtual_time_and_tells_the_time(tmp_path: Path) -> None:
    class Sleeper(Policy):
        async def main(self) -> None:
            for _ in range(2):
                await Record("woke", {"now": await Sleep(7.5)})

    run = ran(tmp_path, Sleeper, nodes=1)
    assert [r["now"] for r in run.of("woke")] == [7.5, 15.0]
    assert run.seconds == pytest.approx(15.0, abs=0.01)  # includes the final evaluation


def test_peers_are_the_others_in_order(tmp_path: Path) -> None:
    class Looker(Policy):
        async def main(self) -> None:
            await Record("saw", {"peers": await Peers()})

    run = ran(tmp_path, Looker, nodes=3)
    assert [r["peers"] for r in run.of("saw", B)] == [[A, C]]


# -- messages ----------------------------------------------------------------------------------------------------


def test_send_names_those_who_took_it_after_a_round_trip(tmp_path: Path) -> None:
    class Sender(Scripted):
        async def leader(self) -> None:
            taken = await Send([C, B], self.model)
            await Record("answer", {"by": taken, "now": await Sleep(0)})

    row = ran(tmp_path, Sender).of("answer")[0]
    assert row["by"] == [C, B]
    assert 0.004 <= row["now"] < 0.005


def test_a_bigger_delay_makes_the_round_trip_longer(tmp_path: Path) -> None:
    class Sender(Scripted):
        async def leader(self) -> None:
            await Send([B], self.model)
            await Record("sent_at", {"now": await Sleep(0)})

    row = ran(tmp_path, Sender, faults=[Delay(0.5)]).of("sent_at")[0]
    assert 1.004 <= row["now"] < 1.005


def test_a_flood_is_refused_and_counted(tmp_path: Path) -> None:
    class Flooder(Scripted):
        async def leader(self) -> None:
            for _ in range(5):
                await Record("answer", {"taken": await Send([B], self.model)})

    run = ran(tmp_path, Flooder)
    assert [r["taken"] for r in run.of("answer")] == [[B], [B], [], [], []]
    assert run.swarm.refused() == {"flood": 3}
    assert [r["reason"] for r in run.of("refused", B)] == ["flood"] * 3


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (constant(float("nan")), "not_finite"),
        (constant(1.0).core, "layout"),
    ],
)
def test_a_model_that_must_not_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model, reason: str
) -> None:
    monkeypatch.setattr("pfl_node.node.push.check_part", lambda *_: None)  # a peer with another policy sends it

    class Sender(Scripted):
        async def leader(self) -> None:
            await Record("answer", {"taken": await Send([B], model)})

    run = ran(tmp_path, Sender)
    assert [r["taken"] for r in run.of("answer")] == [[]]
    assert run.swarm.refused() == {reason: 1}


def test_a_model_of_a_round_that_is_over_is_refused(tmp_path: Path) -> None:
    class Late(Scripted):
        async def leader(self) -> None:
            await Sleep(5.0)
            await Record("answer", {"taken": await Send([B], self.model, round=0)})

        async def follower(self) -> None:
            await Gather([], 0)
            await Sleep(10.0)

    run = ran(tmp_path, Late)
    assert [r["taken"] for r in run.of("answer")] == [[]]
    assert run.swarm.refused() == {"stale_round": 1}


def test_gather_brings_what_was_sent_for_the_round_in_the_order_asked(tmp_path: Path) -> None:
    class Meeting(Policy):
        async def main(self) -> None:
            others = await Peers()
            await Send(others, constant(float(self.me[-1])), round=0, tag=7, notes={"x": 1.0})
            offers = await Gather(others[::-1], 0)
            facts = [(o.sender, float(o.model.vector[0]), o.tag, o.samples, o.notes["x"]) for o in offers]
            await Record("got", {"offers": facts, "rounds": [o.round for o in offers]})

    row = ran(tmp_path, Meeting).of("got", B)[0]
    assert row["offers"] == [[C, 2.0, 7, 10, 1.0], [A, 0.0, 7, 10, 1.0]]
    assert row["rounds"] == [0, 0]


def test_gather_is_partial_when_the_patience_is_over(tmp_path: Path) -> None:
    class Waiter(Scripted):
        async def leader(self) -> None:
            offers = await Gather([B, C], 0)
            await Record("got", {"from": [o.sender for o in offers], "now": await Sleep(0)})

        async def follower(self) -> None:
            if self.me == B:
                await Send([A], self.model, round=0)
            await Sleep(60.0)

    row = ran(tmp_path, Waiter, settings=Settings(round=RoundSettings(patience=4.0))).of("got")[0]
    assert row["from"] == [B]
    assert row["now"] == 4.0


def test_gather_ends_when_those_missing_are_known_to_be_dead(tmp_path: Path) -> None:
    class Waiter(Scripted):
        async def leader(self) -> None:
            offers = await Gather([B], 0, patience=1000.0)
            await Record("got", {"from": [o.sender for o in offers], "now": await Sleep(0)})

    row = ran(tmp_path, Waiter, nodes=2, faults=[Crash(1.0, B)]).of("got")[0]
    assert row["from"] == []
    assert 6.0 <= row["now"] <= 11.0


def test_gather_ends_when_those_missing_have_left(tmp_path: Path) -> None:
    class Waiter(Scripted):
        async def leader(self) -> None:
            await Gather([B], 0, patience=1000.0)
            await Record("got", {"now": await Sleep(0)})

        async def follower(self) -> None:
            await Sleep(1.0)

    assert 1.2 < ran(tmp_path, Waiter, nodes=2).of("got")[0]["now"] < 1.8  # at its next look at the members


def test_gather_does_not_wait_for_a_peer_that_is_in_a_later_round(tmp_path: Path) -> None:
    class Waiter(Scripted):
        async def leader(self) -> None:
            await Gather([B], 0, patience=1000.0)
            await Record("got", {"now": await Sleep(0)})

        async def follower(self) -> None:
            await Sleep(1.0)
            await Send([A], self.model, round=3)
            await Sleep(60.0)

    assert ran(tmp_path, Waiter, nodes=2).of("got")[0]["now"] == pytest.approx(1.002, abs=1e-3)


def test_a_round_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    class Waiter(Scripted):
        async def leader(self) -> None:
            await Gather([], 5)
            await Gather([B], 3, patience=1000.0)
            await Record("got", {"now": await Sleep(0)})

    assert ran(tmp_path, Waiter, nodes=2).of("got")[0]["now"] == 0.0


def test_a_peer_that_went_on_without_a_word_is_not_waited_for(tmp_path: Path) -> None:
    """In fedavg only some nodes send; a node in a later round sends nothing for an earlier one."""

    class Silent(Policy):
        lockstep = True

        async def main(self) -> None:
            if self.me == A:
                await Gather([B], 0, patience=1000.0)
                await Record("waited")
                return
            for t in self.remaining():
                await Sleep(5.0)
                await Report(t, self.model)
            await Sleep(500.0)

    (row,) = ran(tmp_path, Silent, nodes=2).of("waited")
    assert 5.0 < row["time"] < 8.0


def test_receive_waits_for_n_models_or_its_patience(tmp_path: Path) -> None:
    class Receiver(Scripted):
        async def leader(self) -> None:
            both = await Receive(2, patience=30.0)
            await Record("got", {"from": [o.sender for o in both], "now": await Sleep(0)})
            none = await Receive(1, patience=3.0)
            await Record("got", {"from": [o.sender for o in none], "now": await Sleep(0)})

        async def follower(self) -> None:
            await Sleep(2.0 if self.me == B else 1.0)
            await Send([A], self.model)
            await Sleep(60.0)

    first, second = ran(tmp_path, Receiver).of("got")
    assert (first["from"], second["from"]) == ([C, B], [])
    assert first["now"] == pytest.approx(2.002, abs=1e-3)
    assert second["now"] == pytest.approx(first["now"] + 3.0)


def test_fetch_brings_the_published_model_or_a_part_of_it(tmp_path: Path) -> None:
    class Puller(Scripted):
        async def leader(self) -> None:
            await Sleep(5.0)
            for part in ("model", "core", "head"):
                offers = await Fetch([C, B], part)
                facts = [(o.sender, o.model.layout.part, float(o.model.vector[0]), o.round) for o in offers]
                await Record("got", {"offers": facts})

        async def follower(self) -> None:
            await Report(4, constant(8.0))
            await Sleep(60.0)

    rows = ran(tmp_path, Puller).of("got")
    assert [r["offers"] for r in rows] == [
        [[C, part, 8.0, 4], [B, part, 8.0, 4]] for part in ("model", "core", "head")
    ]


def test_who_has_told_nothing_yet_gives_nothing(tmp_path: Path) -> None:
    class Puller(Scripted):
        async def leader(self) -> None:
            await Record("got", {"n": len(await Fetch([B]))})

        async def follower(self) -> None:
            await Sleep(60.0)

    run = ran(tmp_path, Puller)
    assert run.of("got")[0]["n"] == 0
    assert run.swarm.refused() == {"not_ready": 1}


def test_a_model_of_another_layout_is_missing_whoever_sends_fetches_or_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("push", "driver"):  # on a node with another task, this model would fit
        monkeypatch.setattr(f"pfl_node.node.{module}.check_message", lambda *_: None)
    other = Model(Layout((Entry("core", (4,)),), ()), np.zeros(4, np.float32))

    class Stranger(Scripted):
        async def leader(self) -> None:
            await Sleep(5.0)
            got = [len(await Fetch([B])), len(await Send([B], other)), len(await Ask([B], other))]
            await Record("got", {"n": got})

        async def follower(self) -> None:
            await Publish(other, round=0)
            await Sleep(60.0)

    run = ran(tmp_path, Stranger)
    assert run.of("got")[0]["n"] == [0, 0, 0]
    assert run.swarm.refused() == {"layout": 3}


def test_what_is_published_is_fetched_with_its_tag_and_notes(tmp_path: Path) -> None:
    class Puller(Scripted):
        async def leader(self) -> None:
            await Sleep(5.0)
            for part in ("head", "predictions"):
                (offer,) = await Fetch([B], part)
                facts = [offer.round, offer.tag, dict(offer.notes), offer.model.layout.part]
                await Record("got", {"offer": facts})

        async def follower(self) -> None:
            await Publish(constant(8.0), round=1, tag=3, notes={"x": 0.5})
            await Publish(await Predict(constant(8.0)), round=2)
            await Sleep(60.0)

    rows = ran(tmp_path, Puller).of("got")
    assert [r["offer"] for r in rows] == [[1, 3, {"x": 0.5}, "head"], [2, 0, {}, "predictions"]]


def test_predictions_are_gathered_like_models_and_taught_to_a_student(tmp_path: Path) -> None:
    class Pupil(Scripted):
        takes = ("predictions",)

        async def leader(self) -> None:
            (offer,) = await Gather([B], 0)
            student = await Distill(constant(0.0), offer.model)
            await Record("got", {"student": float(student.vector[0]), "now": await Sleep(0)})

        async def follower(self) -> None:
            await Send([A], await Predict(constant(4.0)), round=0)

    row = ran(tmp_path, Pupil).of("got")[0]
    assert row["student"] == pytest.approx(2.0, abs=1e-3)
    assert row["now"] > 0.3  # thirty epochs of a batch


def test_who_is_done_stays_until_all_are(tmp_path: Path) -> None:
    class Mixed(Scripted):
        async def leader(self) -> None:
            await Sleep(20.0)

        async def follower(self) -> None:
            early = await Linger(3.0)
            await Record("looked", {"all": early, "now": await Sleep(0)})
            await Record("left", {"all": await Linger(), "now": await Sleep(0)})

    run = ran(tmp_path, Mixed)
    assert [(r["all"], r["now"]) for r in run.of("looked")] == [(False, 3.0)] * 2
    assert all(r["all"] and 20.0 <= r["now"] < 22.0 for r in run.of("left"))


def test_nobody_stays_for_a_node_that_is_known_to_be_dead(tmp_path: Path) -> None:
    class Mixed(Scripted):
        async def leader(self) -> None:
            await Sleep(3000.0)

        async def follower(self) -> None:
            await Record("left", {"all": await Linger(), "now": await Sleep(0)})

    run = ran(tmp_path, Mixed, faults=[Crash(5.0, A)])
    assert all(r["all"] and r["now"] < 20.0 for r in run.of("left"))


def test_a_step_that_fails_fails_at_the_line_that_asked(tmp_path: Path) -> None:
    class Wrong(Scripted):
        async def leader(self) -> None:
            with pytest.raises(ValueError, match="weights"):
                await Average(self.model, [self.model], weights=[1.0, 2.0])
            await Record("caught")

    assert ran(tmp_path, Wrong).of("caught")


def test_ask_gets_scores_on_the_data_of_others(tmp_path: Path) -> None:
    class Asker(Scripted):
        async def leader(self) -> None:
            scores = await Ask([B, C], constant(1.0))
            await Record("got", {"losses": {p: e.loss for p, e in scores.items()}})

    assert ran(tmp_path, Asker).of("got")[0]["losses"] == {B: 0.0, C: 2.0}  # their points are 1 and -1


def test_what_a_node_does_not_serve_is_refused(tmp_path: Path) -> None:
    class Puller(Scripted):
        async def leader(self) -> None:
            await Record("got", {"model": len(await Fetch([B])), "head": len(await Fetch([B], "head"))})
            await Record("asked", {"scores": len(await Ask([B], self.model))})

    run = ran(tmp_path, Puller, settings=Settings(serve=ServeSettings(model=False, evaluate=False)))
    assert (run.of("got")[0]["model"], run.of("got")[0]["head"], run.of("asked")[0]["scores"]) == (0, 1, 0)
    assert run.swarm.refused() == {"not_served": 2}


@pytest.mark.parametrize("step", [Send([B], constant(0.0)), Fetch([B]), Ask([B], constant(0.0))])
def test_a_lost_message_costs_the_deadline_and_is_missing_from_the_answer(tmp_path: Path, step: Step[Any]) -> None:
    class Caller(Scripted):
        async def leader(self) -> None:
            await Record("answer", {"n": len(await step), "now": await Sleep(0)})

    row = ran(tmp_path, Caller, faults=[Loss(1.0)]).of("answer")[0]
    assert row["n"] == 0
    assert row["now"] == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("step", [Send([B, C], constant(0.0)), Fetch([B, C]), Ask([B, C], constant(0.0))])
def test_a_dead_peer_costs_a_timeout_until_it_is_known_to_be_dead(tmp_path: Path, step: Step[Any]) -> None:
    class Caller(Scripted):
        async def leader(self) -> None:
            for wait in (1.0, 20.0):
                before = await Sleep(wait)
                n = len(await step)
                await Record("answer", {"n": n, "took": await Sleep(0) - before})

    unknown, known = ran(tmp_path, Caller, faults=[Crash(0.5, B)]).of("answer")
    assert (unknown["n"], known["n"]) == (1, 1)
    assert unknown["took"] == pytest.approx(5.0)
    assert known["took"] < 0.1


def test_a_peer_that_left_is_missing_without_a_timeout(tmp_path: Path) -> None:
    class Caller(Scripted):
        async def leader(self) -> None:
            before = await Sleep(0.1)  # B has left, which A does not know yet
            await Record("answer", {"taken": await Send([B], self.model), "took": await Sleep(0) - before})

        async def follower(self) -> None: ...

    row = ran(tmp_path, Caller, nodes=2).of("answer")[0]
    assert row["taken"] == []
    assert row["took"] < 0.01


def test_calls_to_nobody_are_answered_at_once(tmp_path: Path) -> None:
    class Lonely(Policy):
        async def main(self) -> None:
            model = self.model
            empty = [await Send([], model), await Gather([], 0), await Fetch([]), tuple(await Ask([], model))]
            await Record("empty", {"answers": empty, "now": await Sleep(0)})

    row = ran(tmp_path, Lonely, nodes=1).of("empty")[0]
    assert row["answers"] == [[], [], [], []]
    assert row["now"] == 0.0


# -- handlers ----------------------------------------------------------------------------------------------------


def test_handlers_run_one_after_the_other_beside_main(tmp_path: Path) -> None:
    class Handler(Scripted):
        async def leader(self) -> None:
            for _ in range(4):
                await Record("main", {"now": await Sleep(1.0)})

        async def follower(self) -> None:
            await Send([A], self.model)

        async def on_model(self, offer: Offer) -> None:
            begin = await Sleep(0)
            end = await Sleep(1.5)
            await Record("handled", {"from": offer.sender, "begin": begin, "end": end})

    run = ran(tmp_path, Handler)
    first, second = run.of("handled", A)
    assert (first["from"], second["from"]) == (B, C)
    assert second["begin"] == first["end"]
    assert [r["now"] for r in run.of("main")] == [1.0, 2.0, 3.0, 4.0]


def test_silence_is_told_again_and_again_and_counted_from_the_last_handler(tmp_path: Path) -> None:
    class Quiet(Scripted):
        async def leader(self) -> None:
            await Sleep(20.0)

        async def follower(self) -> None:
            await Sleep(3.0)
            await Send([A], self.model)

        async def on_model(self, offer: Offer) -> None:
            await Sleep(1.0)

        async def on_quiet(self) -> None:
            await Record("quiet", {"now": await Sleep(2.0)})

        @property
        def quiet_after(self) -> float:
            return 5.0

    times = [r["now"] for r in ran(tmp_path, Quiet, nodes=2).of("quiet", A)]
    assert times == pytest.approx([4.0 + 5 + 2, 11.0 + 5 + 2], abs=0.01)


def test_when_main_returns_the_handlers_end_too(tmp_path: Path) -> None:
    class Short(Scripted):
        async def leader(self) -> None:
            await Sleep(1.0)

        async def follower(self) -> None:
            await Send([A], self.model)

        async def on_model(self, offer: Offer) -> None:
            await Sleep(5.0)
            await Record("never")

    run = ran(tmp_path, Short, nodes=2)
    assert run.of("never") == []
    assert run.seconds == pytest.approx(1.0, abs=0.01)


# -- learning ----------------------------------------------------------------------------------------------------


def test_one_trainer_does_its_jobs_one_after_the_other_while_main_goes_on(tmp_path: Path) -> None:
    class Busy(Scripted):
        async def leader(self) -> None:
            await Train(self.model, steps=100)  # a second
            await Record("main", {"now": await Sleep(0)})

        async def follower(self) -> None:
            await Send([A], self.model)

        async def on_model(self, offer: Offer) -> None:
            await Train(self.model, steps=50)
            await Record("handler", {"now": await Sleep(0)})
            await Sleep(9.0)

    class Both(Busy):
        async def leader(self) -> None:
            await super().leader()
            await Sleep(5.0)

    run = ran(tmp_path, Both, nodes=2)
    assert run.of("main")[0]["now"] == pytest.approx(1.0)
    assert run.of("handler")[0]["now"] == pytest.approx(1.5)


def test_a_slow_node_takes_longer_for_the_same_work(tmp_path: Path) -> None:
    class Worker(Policy):
        async def main(self) -> None:
            await Train(self.model, steps=100)
            await Score([self.model] * 10)  # 100 samples
            await Record("done", {"now": await Sleep(0)})

    run = ran(tmp_path, Worker, faults=[Slow(B, 4.0)])
    assert run.of("done", A)[0]["now"] == pytest.approx(1.04)
    assert run.of("done", B)[0]["now"] == pytest.approx(4.16)


def test_fresh_models_are_equal_for_equal_seeds_and_on_all_nodes_when_the_start_is_common(tmp_path: Path) -> None:
    class Maker(Policy):
        async def main(self) -> None:
            models = [await Fresh(seed=s) for s in (0, 0, 1)] + [await Fresh("head", seed=1)]
            await Record("made", {"sums": [float(m.vector.sum()) for m in models]})
            await Record("first", {"same": models[0] == self.model, "part": models[3] == models[2].head})

    common, independent = TrainSettings(init="common"), TrainSettings(init="independent")
    for train, alike in ((common, True), (independent, False)):
        run = ran(tmp_path, Maker, settings=Settings(train=train))
        sums = [r["sums"] for r in run.of("made")]
        assert (sums[0] == sums[1]) is alike
        assert sums[0][0] == sums[0][1] != sums[0][2]
        assert all(r["same"] and r["part"] for r in run.of("first"))


def test_every_training_has_a_seed_of_its_own(tmp_path: Path) -> None:
    run = ran(tmp_path, Together, nodes=3, rounds=4)
    seeds = [t["seed"] for n in run.swarm.world.nodes.values() for t in n.learner.trained]  # type: ignore[attr-defined]
    assert len(seeds) == len(set(seeds)) == 12


# -- trouble -----------------------------------------------------------------------------------------------------


def test_waiting_for_what_cannot_come_is_an_error_that_names_who_and_what(tmp_path: Path) -> None:
    class Stuck(Policy):
        async def main(self) -> None:
            await Gather(await Peers(), 7, patience=inf)

    with pytest.raises(SimulationStuck) as error:
        ran(tmp_path, Stuck)
    assert "n000 waits for Gather of round 7 from n001, n002" in str(error.value)


def test_a_run_without_progress_is_given_up(tmp_path: Path) -> None:
    class Forever(Policy):
        async def main(self) -> None:
            while True:
                await Sleep(1.0)

    with pytest.raises(SimulationStuck, match=r"no round was finished .*n000 waits for Sleep.* and 3 more"):
        ran(tmp_path, Forever, nodes=8)


@pytest.mark.parametrize("step", [Peers(), Sleep(0.0)])
def test_a_policy_that_goes_round_in_circles_in_no_time_is_given_up(tmp_path: Path, step: Peers | Sleep) -> None:
    class Spins(Policy):
        async def main(self) -> None:
            while True:
                await step

    asks = type(step).__name__
    with pytest.raises(SimulationStuck, match=f"n000 took 100000 steps without waiting and awaits {asks} again"):
        ran(tmp_path, Spins, nodes=1)


def test_a_policy_that_fails_fails_the_run_and_the_note_says_when(tmp_path: Path) -> None:
    class Broken(Policy):
        async def main(self) -> None:
            await Sleep(2.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        ran(tmp_path, Broken, nodes=1)
    assert error.value.__notes__ == ["n000, main", "at 2.000000 s of the simulation"]


def test_a_step_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    class Unknown(Step[None]):
        pass

    class Asker(Policy):
        async def main(self) -> None:
            await Unknown()

    with pytest.raises(TypeError, match="not a known step"):
        ran(tmp_path, Asker, nodes=1)


def test_nothing_is_sent_to_somebody_who_does_not_exist(tmp_path: Path) -> None:
    class Dreamer(Policy):
        async def main(self) -> None:
            await Record("answer", {"taken": await Send([D], self.model)})

    assert ran(tmp_path, Dreamer, nodes=1).of("answer")[0]["taken"] == []
