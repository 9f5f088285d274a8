"""The driver: how each step is answered. Two or three drivers share an in-memory network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pfl_node import predictions
from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import DeviceMemoryFull, PeerError, PeerGone, PeerTimedOut, Reason, Refused
from pfl_node.learning.trainer import TrainerThread
from pfl_node.model import Layout, Model, PartialModel
from pfl_node.node.async_compressor import AsyncCompressor
from pfl_node.node.context import NodeContext, WorkCount
from pfl_node.node.driver import Driver
from pfl_node.node.gather import ArrivalTimes
from pfl_node.node.notifier import Notifier
from pfl_node.node.push import PushSlots
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.protocol.deadlines import MIN_HISTORY, SILENT, Deadlines
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Limits, Mailbox
from pfl_node.settings import Settings
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import (
    Ask,
    Average,
    Distill,
    Fetch,
    Fresh,
    Gather,
    Gradient,
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
from pfl_node.types import Eval, Offer, Part, PeerId
from tests.toy import LAYOUT, ToyLearner, constant

A, B, C, D = (PeerId(i) for i in "abcd")


class MemoryNetwork:
    """An in-memory network of drivers; addresses are ids."""

    def __init__(self, *ids: PeerId) -> None:
        self.boxes = {i: Mailbox() for i in ids}
        self.notifiers = {i: Notifier() for i in ids}
        self.down: set[PeerId] = set()
        self.alive = set(ids)
        self.finished: list[PeerId] = []
        self.rounds: dict[PeerId, int] = {}
        self.done: set[PeerId] = set()
        self.spoiled: set[PeerId] = set()  # peers with invalid answers
        self.partial: set[PeerId] = set()  # peers that answer with a partial model, whatever was asked for
        self.busy = self.busiest = 0  # concurrent fetches
        self.hidden: dict[PeerId, int] = {}  # rounds revealed only by `ask`


class FakePeers:
    """The peers of one node on the network."""

    def __init__(self, board: MemoryNetwork, me: PeerId) -> None:
        self.board = board
        self.me = me

    def __call__(self) -> Mapping[PeerId, str]:
        return {p: p for p in self.board.alive if p != self.me}

    def rounds(self) -> Mapping[PeerId, int]:
        return {p: self.board.rounds.get(p, 0) for p in self()}

    def ask(self, peers: Iterable[PeerId]) -> None:
        self.board.rounds |= {p: self.board.hidden[p] for p in peers if p in self.board.hidden}

    def everyone(self, *, finished: bool) -> tuple[PeerId, ...]:
        return tuple(sorted({*self(), *(self.board.finished if finished else ())}))

    def unfinished(self) -> dict[PeerId, int]:
        return {p: self.board.rounds.get(p, 0) for p in sorted(self.board.alive - self.board.done - {self.me})}

    async def swarm_round(self) -> int:
        return max(self.rounds().values(), default=0)

    def announce_start(self, round: int) -> None:
        self.board.rounds[self.me] = round

    def announce_finished(self) -> None:
        self.board.done.add(self.me)


class FakeClient:
    """The client of one node on the network."""

    def __init__(self, board: MemoryNetwork, me: PeerId) -> None:
        self.board = board
        self.me = me

    async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
        if peer in self.board.down:
            raise PeerGone(peer, "no answer")
        offer = Offer(self.me, model, **said)
        self.board.boxes[peer].admit(self.me, offer.round)
        self.board.boxes[peer].put(offer)
        self.board.notifiers[peer].notify("inbox" if offer.round is None else "rounds")
        return model.nbytes

    def transferring(self, peer: PeerId) -> bool:
        return False

    async def fetch(self, peer: PeerId, address: str, part: Part, layout: Layout, **_: Any) -> Offer:
        if peer in self.board.down:
            raise PeerGone(peer, "no answer")
        if peer in self.board.spoiled:
            raise Refused(Reason.NOT_FINITE, "it holds a NaN", peer)
        self.board.busy += 1
        self.board.busiest = max(self.board.busiest, self.board.busy)
        await asyncio.sleep(0.001)
        self.board.busy -= 1
        model = constant(5.0).of(part)
        return Offer(peer, model.sparse([0]) if peer in self.board.partial else model)

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval:
        if peer in self.board.down:
            raise PeerGone(peer, "no answer")
        return Eval(1.0, 0.5, 10)


class FakeRecorder:
    """A recorder that keeps everything in lists."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reports: list[Report] = []
        self.publications: list[Publish] = []
        self.failures: list[PeerError] = []
        self.slow: list[PeerId] = []
        self.given_up: list[tuple[int, tuple[PeerId, ...]]] = []
        self.pauses_seen: list[dict[str, Any]] = []
        self.paused = asyncio.Event()

    def record(self, step: Record) -> None:
        self.records.append(step)

    def published(self, step: Publish) -> None:
        self.publications.append(step)

    async def report(self, step: Report) -> None:
        self.reports.append(step)

    async def pauses(self, next_round: Mapping[str, Any]) -> None:
        self.pauses_seen.append(dict(next_round))
        self.paused.set()

    def failed(self, call: str, error: PeerError) -> None:
        self.failures.append(error)

    def too_slow(self, peer: PeerId) -> None:
        self.slow.append(peer)

    def gave_up(self, round: int, peers: Sequence[PeerId], seconds: float) -> None:
        self.given_up.append((round, tuple(peers)))


class Scripted(Policy):
    """A policy with the given main()."""

    script: Callable[[Policy], Awaitable[None]]

    async def main(self) -> None:
        await self.script(self)


def driver(
    board: MemoryNetwork,
    me: PeerId,
    script: Callable[[Any], Awaitable[None]],
    *,
    kind: type[Scripted] = Scripted,
    trainer: TrainerThread,
    learner: ToyLearner | None = None,
    aggregate: dict[str, Any] | None = None,
    wire: dict[str, Any] | None = None,
    guard: Guard | None = None,
    linger: float = 600.0,
    waiting: dict[str, Any] | None = None,
) -> tuple[Driver, FakeRecorder]:
    policy = kind(me=me, cfg=PolicyConfig(), model=constant(1.0), rounds=3, seed=1, rng=random.Random(0))
    policy.script = script
    learner = learner or ToyLearner()
    notes = FakeRecorder()
    line: Any = FakeClient(board, me)
    waits = {"patience": 0.05, "linger": linger, **(waiting or {})}
    settings = Settings.model_validate({"round": waits, "aggregate": aggregate or {}, "wire": wire or {}})
    deadlines = Deadlines(settings.round)
    board.boxes[me].observer = ArrivalTimes(deadlines)
    context = NodeContext(
        settings=settings,
        learner=learner,
        trainer=ThreadTrainer.of(trainer, learner),
        network=line,
        mailbox=board.boxes[me],
        deadlines=deadlines,
        notifier=board.notifiers[me],
        peers=FakePeers(board, me),
        recorder=notes,
        work=WorkCount(),
        guard=guard or Guard(GuardSettings(), certain=True),
    )
    return Driver(policy, context), notes


def run(
    *scripts: Callable[[Any], Awaitable[None]], board: MemoryNetwork | None = None, **options: Any
) -> list[FakeRecorder]:
    """Run one driver per script on one switchboard."""

    async def go() -> list[FakeRecorder]:
        trainer = TrainerThread()
        ids = (A, B, C, D)[: len(scripts)]
        network = board or MemoryNetwork(*ids)
        try:
            made = [driver(network, i, s, trainer=trainer, **options) for i, s in zip(ids, scripts, strict=True)]
            await asyncio.gather(*(d.run() for d, _ in made))
            return [n for _, n in made]
        finally:
            await trainer.close()

    return asyncio.run(go())


async def nothing(_: Policy) -> None:
    return


def test_a_node_without_peers_says_that_it_waits_and_begins_when_one_comes() -> None:
    board, seen = MemoryNetwork(A), []

    async def script(me: Policy) -> None:
        seen.append(await Peers())

    async def go() -> FakeRecorder:
        trainer = TrainerThread()
        one, notes = driver(board, A, script, trainer=trainer, waiting={"alone": "wait"})
        running = asyncio.create_task(one.run())
        await notes.paused.wait()
        assert (seen, one.schedule.facts()) == ([], notes.pauses_seen[0])
        board.alive.add(B)
        board.notifiers[A].notify("members")
        await running
        await trainer.close()
        return notes

    notes = asyncio.run(go())
    assert notes.pauses_seen == [{"round": 0, "at": None, "why": "round.alone"}]
    assert seen == [(B,)]


def test_a_training_that_needs_too_much_memory_costs_a_round_and_leaves_the_model() -> None:
    class Small(ToyLearner):
        def train(self, model: Model, **_: Any) -> Model:
            raise DeviceMemoryFull("the memory of cuda:0 is full")

    answers: list[Any] = []

    async def script(me: Policy) -> None:
        answers.append((me.model, await Train(me.model)))
        await Report(0, me.model)

    (notes,) = run(script, learner=Small())
    before, after = answers[0]
    assert after is before
    assert [(r.event, r.data["error"]) for r in notes.records] == [
        ("out_of_memory", "the memory of cuda:0 is full")
    ]


def test_learning_steps_are_answered_by_the_learner() -> None:
    answers: list[Any] = []
    learner = ToyLearner(point=3.0)

    async def script(me: Policy) -> None:
        answers.append(await Train(me.model, only="head", steps=4, prox=0.1))
        answers.append(await Score([constant(3.0), constant(4.0)]))
        answers.append(await Average(constant(1.0), [constant(3.0)], weights=[1], own=3))
        answers.append((await Fresh(seed=1), await Fresh(seed=1), await Fresh("head", seed=2)))

    run(script, learner=learner)
    trained, scores, mean, (one, same, head) = answers
    assert trained == constant(2.0)
    assert learner.trained[0] | {"seed": 0} == {
        "seed": 0,
        "only": "head",
        "correction": None,
        "penalty": None,
        "anchors": {},
        "knobs": {},
        "epochs": None,
        "steps": 4,
        "lr": None,
        "prox": 0.1,
        "anchor": None,
        "plain": False,
        "slot": 0,
        "round": 0,
    }
    assert [s.loss for s in scores] == [0.0, 1.0]
    assert mean == constant(1.5)
    assert one == same
    assert head.layout.part == "head"


def test_an_average_follows_the_rule_of_the_settings() -> None:
    answers: list[Model] = []

    async def script(me: Policy) -> None:
        answers.append(await Average(constant(1.0), [constant(2.0), constant(90.0)]))

    run(script)
    run(script, aggregate={"rule": "median"})
    assert answers == [constant(31.0), constant(2.0)]


def test_predictions_are_made_and_a_student_learns_from_them() -> None:
    answers: list[Any] = []

    async def script(me: Policy) -> None:
        said = await Predict(constant(4.0), novelty=3, counts=True)
        answers.extend((said, await Distill(constant(0.0), said, epochs=2)))

    run(script)
    said, student = answers
    assert said.layout.part == "predictions"
    assert predictions.counts(said).tolist() == [10, 0]
    assert np.allclose(student.vector, 2.0, atol=1e-3)


def test_what_fails_while_a_step_is_answered_fails_at_the_line_that_asked() -> None:
    seen: list[str] = []

    async def script(me: Policy) -> None:
        try:
            await Average(constant(1.0), [constant(2.0)], weights=[1.0, 2.0])
        except ValueError as error:
            seen.append(str(error))
        await Average(constant(1.0), [constant(2.0)], weights=[-1.0])  # the line

    with pytest.raises(ValueError, match="weight") as failed:
        run(script)
    assert len(seen) == 1
    assert any(entry.name == "script" for entry in failed.traceback)


def test_who_is_done_stays_until_all_are() -> None:
    order: list[str] = []

    async def quick(me: Policy) -> None:
        assert await Linger(0.01) is False
        assert await Linger()
        order.append("quick")

    async def slow(me: Policy) -> None:
        await Sleep(0.1)
        order.append("slow")
        assert await Linger(3600.0)

    run(quick, slow)
    assert order == ["slow", "quick"]


def test_what_is_published_reaches_the_recorder() -> None:
    async def script(me: Policy) -> None:
        await Publish(me.model, round=4, tag=2, notes={"b": 0.5})

    (notes,) = run(script)
    assert [(p.round, p.tag, dict(p.notes)) for p in notes.publications] == [(4, 2, {"b": 0.5})]


def test_every_training_gets_a_seed_of_its_own() -> None:
    learner = ToyLearner()

    async def script(me: Policy) -> None:
        for _ in range(3):
            await Train(me.model)

    run(script, learner=learner)
    assert len({t["seed"] for t in learner.trained}) == 3


def test_a_round_gathers_what_its_peers_sent_in_the_order_asked() -> None:
    got: list[tuple[Offer, ...]] = []

    async def sender(me: Policy) -> None:
        assert await Send([A], constant(7.0), round=0, tag=2, notes={"x": 1.0}) == (A,)

    async def gatherer(me: Policy) -> None:
        peers = await Peers()
        assert peers == (B, C)
        got.append(await Gather([C, B], round=0, patience=5.0))

    run(gatherer, sender, sender)
    assert [(o.sender, o.tag, o.samples, dict(o.notes)) for o in got[0]] == [
        (C, 2, 10, {"x": 1.0}),
        (B, 2, 10, {"x": 1.0}),
    ]


def test_a_gather_takes_what_others_sent_when_it_says_so() -> None:
    got: list[tuple[Offer, ...]] = []

    async def sender(me: Policy) -> None:
        await Send([A], constant(7.0), round=0)
        await Send([A], constant(8.0), round=1)

    async def gatherer(me: Policy) -> None:
        got.append(await Gather([B, C], round=0, patience=5.0))
        got.append(await Gather([C], round=1, patience=5.0, others=True))

    run(gatherer, sender, sender)
    assert [[o.sender for o in offers] for offers in got] == [[B, C], [C, B]]


def test_a_peer_that_never_sends_costs_the_patience_and_is_missing() -> None:
    got: list[Any] = []

    async def gatherer(me: Policy) -> None:
        got.append(await Gather([B], round=0))

    run(gatherer, nothing)
    assert got == [()]


def test_a_dead_peer_is_not_waited_for() -> None:
    board = MemoryNetwork(A, B)

    async def gatherer(me: Policy) -> None:
        await Gather([B], round=0, patience=3600.0)

    async def dies(me: Policy) -> None:
        board.alive.discard(B)
        board.notifiers[A].notify("members")

    run(gatherer, dies, board=board)


def test_a_peer_in_a_later_round_is_not_waited_for() -> None:
    async def late(me: Policy) -> None:
        assert await Gather([B], round=0, patience=3600.0) == ()
        assert [o.round for o in await Gather([B], round=1, patience=3600.0)] == [1]

    async def early(me: Policy) -> None:
        await Send([A], constant(1.0), round=1)

    run(late, early)


def test_who_calls_my_round_stale_is_not_waited_for() -> None:
    board = MemoryNetwork(A, B)
    board.boxes[B].advance(5)

    async def late(me: Policy) -> None:
        assert await Send([B], me.model, round=0) == ()
        assert await Gather([B], round=0, patience=3600.0) == ()

    notes, _ = run(late, nothing, board=board)
    assert "round 0 is over" in str(notes.failures[0])


class Locked(Scripted):
    lockstep = True


def test_one_that_the_swarm_passed_by_does_not_wait_for_others_that_it_passed_by() -> None:
    board = MemoryNetwork(A, B, C, D)
    for ahead in (B, C):
        board.boxes[ahead].advance(40)

    async def behind(me: Policy) -> None:
        await Send([B, C], me.model, round=0)
        assert await Gather([B, C, D], round=0, patience=3600.0) == ()

    run(behind, nothing, nothing, nothing, board=board, kind=Locked)


def test_answers_are_partial_when_a_peer_is_down_or_unknown() -> None:
    board = MemoryNetwork(A, B, C)
    board.down.add(B)
    answers: list[Any] = []

    async def script(me: Policy) -> None:
        everybody = [B, C, PeerId("nobody")]
        answers.append(await Send(everybody, me.model))
        answers.append(await Fetch(everybody, part="head"))
        answers.append(await Ask(everybody, me.model))

    notes = run(script, nothing, nothing, board=board)[0]
    sent, fetched, asked = answers
    assert sent == (C,)
    assert [(o.sender, o.model.layout.part) for o in fetched] == [(C, "head")]
    assert asked == {C: Eval(1.0, 0.5, 10)}
    assert [e.peer for e in notes.failures] == [B, B, B]


def test_a_peer_that_the_membership_says_is_in_a_later_round_is_not_waited_for() -> None:
    """It has already sent its models of this round."""
    board = MemoryNetwork(A, B)
    board.rounds = {B: 4}

    async def script(me: Policy) -> None:
        assert await Gather([B], round=3, patience=3600.0) == ()

    run(script, nothing, board=board)


def test_while_a_node_waits_it_looks_how_far_the_others_are() -> None:
    board = MemoryNetwork(A, B)

    async def waiter(me: Policy) -> None:
        assert await Gather([B], round=0, patience=3600.0) == ()

    async def goes_on(me: Policy) -> None:
        await Sleep(0.01)
        board.rounds[B] = 1  # without a notification

    run(waiter, goes_on, board=board)


def test_those_who_are_waited_for_are_asked_in_which_rounds_they_are() -> None:
    """A peer that caught up skipped this round, and the membership spreads that slowly."""
    board = MemoryNetwork(A, B)
    board.hidden = {B: 7}

    async def script(me: Policy) -> None:
        assert await Gather([B], round=3, patience=3600.0) == ()

    run(script, nothing, board=board)


def test_those_who_finished_stay_in_a_lockstep_policys_graph_but_are_not_waited_for() -> None:
    board = MemoryNetwork(A)
    board.finished = [B]
    answers: list[Any] = []

    async def script(me: Policy) -> None:
        answers.append(await Peers())
        answers.append(await Send([B], me.model, round=0))
        answers.append(await Gather([B], round=0, patience=3600.0))

    run(script, board=board, kind=Locked)
    run(script, board=board)
    assert answers[:3] == [(B,), (), ()]
    assert answers[3] == ()


def test_receive_takes_n_models_or_what_is_there() -> None:
    got: list[int] = []

    async def receiver(me: Policy) -> None:
        got.append(len(await Receive(2, patience=5.0)))
        got.append(len(await Receive(2)))

    async def sender(me: Policy) -> None:
        await Send([A], me.model)

    run(receiver, sender, sender)
    assert got == [2, 0]


class Pushed(Scripted):
    """Counts the calls of its handlers."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.inside = 0
        self.log: list[str] = []

    async def on_model(self, offer: Offer) -> None:
        self.inside += 1
        assert self.inside == 1, "two handlers at once"
        await Train(self.model)
        await Sleep(0.0)
        self.log.append(f"model {offer.sender}")
        self.inside -= 1

    async def on_quiet(self) -> None:
        self.log.append("quiet")

    @property
    def quiet_after(self) -> float:
        return 0.02


def test_handlers_run_one_after_the_other_beside_main_and_hear_the_silence() -> None:
    async def main(me: Pushed) -> None:
        await Send(await Peers(), me.model)
        while me.log.count("quiet") < 2 or len(me.log) < 4:
            await Sleep(0.005)
        await Record("log", {"log": me.log})

    for notes in run(main, main, main, kind=Pushed):
        log = notes.records[0].data["log"]
        assert sorted(x for x in log if x != "quiet") == sorted(x for x in log if x.startswith("model"))
        assert len([x for x in log if x.startswith("model")]) == 2


def test_records_and_reports_reach_the_diary() -> None:
    async def script(me: Policy) -> None:
        await Record("found", {"who": "b"})
        await Report(0, me.model, {"head": 1})

    notes = run(script)[0]
    assert notes.records[0].event == "found"
    assert notes.reports[0].data == {"head": 1}


def test_a_policy_that_fails_ends_the_driver_with_its_error() -> None:
    async def script(me: Policy) -> None:
        await Sleep(0.0)
        raise ValueError("a mistake in the policy")

    with pytest.raises(ValueError, match="a mistake in the policy"):
        run(script)


def test_a_step_nobody_knows_is_named() -> None:
    async def script(me: Policy) -> None:
        await Step()

    with pytest.raises(TypeError, match="not a known step"):
        run(script)


def test_a_stopped_driver_finishes_the_message_in_hand() -> None:
    board = MemoryNetwork(A, B)
    sending, may_go = asyncio.Event(), asyncio.Event()

    class SlowLine(FakeClient):
        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            sending.set()
            await may_go.wait()
            return await super().send(peer, address, model, **said)

    async def script(me: Policy) -> None:
        await Send([B], me.model)

    async def go() -> None:
        trainer = TrainerThread()
        made, _ = driver(board, A, script, trainer=trainer)
        object.__setattr__(made.context, "network", SlowLine(board, A))
        task = asyncio.create_task(made.run())
        await sending.wait()
        task.cancel()
        await asyncio.sleep(0)
        may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await trainer.close()

    asyncio.run(go())
    assert len(board.boxes[B]) == 1


def test_a_training_that_diverges_is_thrown_away_and_written_down() -> None:
    got: list[Model] = []

    async def script(me: Policy) -> None:
        got.append(await Train(me.model))

    notes = run(script, learner=ToyLearner(point=float("nan")))[0]
    assert got == [constant(1.0)]
    assert [r.event for r in notes.records] == ["diverged"]


class RecordingLearner(ToyLearner):
    """Records how gradients are asked for; the gradient at 9 is not finite."""

    def __init__(self) -> None:
        super().__init__(point=3.0)
        self.asked: list[dict[str, Any]] = []

    def gradient(self, model: Model, **options: Any) -> Model:
        options.pop("between")
        self.asked.append(options)
        return constant(np.nan) if model == constant(9.0) else super().gradient(model)


def test_the_same_number_is_the_same_batch_within_a_round_whatever_happened_between() -> None:
    learner, got = RecordingLearner(), []

    async def script(me: Policy) -> None:
        got.append(await Gradient(me.model, batch=4))
        await Train(me.model)
        await Gradient(constant(2.0), batch=4)
        await Gradient(me.model, batch=5, samples=7)
        me.round = 1
        await Gradient(me.model, batch=4)

    run(script, learner=learner)
    assert got == [constant(-2.0)]
    first, again, other, later = learner.asked
    assert first == again
    assert (first["batch"], first["samples"], other) == (4, None, first | {"batch": 5, "samples": 7})
    assert later["seed"] != first["seed"]
    restarted = RecordingLearner()
    run(script, learner=restarted)
    assert restarted.asked == learner.asked


def test_a_gradient_that_is_not_finite_is_answered_with_zeros_and_written_down() -> None:
    got: list[Model] = []

    async def script(me: Policy) -> None:
        got.append(await Gradient(constant(9.0)))

    notes = run(script, learner=RecordingLearner())[0]
    assert got == [constant(0.0)]
    assert [r.event for r in notes.records] == ["diverged"]


def test_a_policy_that_awaits_anything_but_a_step_is_told_where() -> None:
    async def script(me: Policy) -> None:
        await asyncio.sleep(1)

    with pytest.raises(TypeError, match="a policy awaits steps only, not <Future") as caught:
        run(script)
    assert any("test_driver" in str(frame.path) for frame in caught.traceback[1:])


def test_fetches_are_made_as_many_at_a_time_as_the_settings_allow() -> None:
    others = [PeerId(f"p{i}") for i in range(9)]
    board = MemoryNetwork(A, *others)

    async def script(me: Policy) -> None:
        assert len(await Fetch(others)) == 9

    run(script, board=board, wire={"concurrency": 2})
    assert board.busiest == 2


def test_a_partial_answer_to_a_fetch_of_the_whole_model_is_left_out() -> None:
    board = MemoryNetwork(A, B, C)
    board.partial.add(B)

    async def script(me: Policy) -> None:
        assert [o.sender for o in await Fetch([B, C])] == [B, C]
        assert [o.sender for o in await Fetch([B, C], whole=True)] == [C]

    (notes,) = run(script, board=board)
    assert [(e.peer, e.reason) for e in notes.failures if isinstance(e, Refused)] == [(B, Reason.LAYOUT)]


def test_one_whose_answers_are_bad_is_not_asked_any_more() -> None:
    board = MemoryNetwork(A, B, C)
    board.spoiled.add(B)
    told: list[str] = []
    guard = Guard(GuardSettings(), certain=True, tell=lambda event, data: told.append(event))

    async def script(me: Policy) -> None:
        for _ in range(5):
            assert [o.sender for o in await Fetch([B, C])] == [C]

    notes = run(script, board=board, guard=guard)[0]
    assert len(notes.failures) == 3  # then it is in quarantine
    assert told == ["quarantined"]
    assert guard.ever == {B: 1}


def test_the_gate_scores_what_is_to_be_merged_and_leaves_out_what_is_much_worse() -> None:
    guard = Guard(GuardSettings(gate=0.5), certain=True)
    answers: list[Any] = []

    async def script(me: Policy) -> None:
        answers.append(await Average(constant(3.0), [constant(3.2), constant(-50.0)]))
        answers.append(await Average(constant(3.0).core, [constant(-50.0).core]))

    run(script, learner=ToyLearner(point=3.0), guard=guard)
    assert answers[0].vector[0] == pytest.approx(3.1)
    assert answers[1].vector[0] == 3.0
    assert guard.refused == {"gate": 2}


def test_one_that_is_done_does_not_stay_for_somebody_who_gets_no_further() -> None:
    said: list[bool] = []

    async def script(me: Policy) -> None:
        said.append(await Linger())

    run(script, board=MemoryNetwork(A, B), linger=0.05)
    assert said == [True]


def test_a_push_that_waits_takes_no_turn_of_a_later_model() -> None:
    """With one number in a message, each message has the next one in turn."""
    rounds, came = 2 * LAYOUT.size, {B: list[int](), C: list[int]()}

    class Slow(FakeClient):
        """A push to B lasts until C has got three more."""

        busy, until, enough = False, 0, asyncio.Event()

        def transferring(self, peer: PeerId) -> bool:
            return peer == B and self.busy

        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            assert isinstance(model, PartialModel)
            if peer == B:
                self.busy, self.until = True, min(rounds, len(came[C]) + 3)
                self.enough.clear()
                if len(came[C]) < self.until:
                    await self.enough.wait()
                self.busy = False
            came[peer].append(int(model.indices[0]))
            if len(came[C]) >= self.until:
                self.enough.set()
            return model.nbytes

    async def script(me: Policy) -> None:
        for t in range(rounds):
            await Send([B, C] if t % 5 < 2 else [C], constant(1.0), round=t)
            await Sleep(0.01)

    async def go() -> None:
        trainer, board = TrainerThread(), MemoryNetwork(A, B, C)
        one, _ = driver(board, A, script, trainer=trainer, waiting={"transfer": 0.01})
        line: Any = Slow(board, A)
        context = replace(one.context, network=line, compressor=AsyncCompressor("top:0.01", A))
        await Driver(one.policy, context).run()
        await trainer.close()

    asyncio.run(go())
    assert len(came[B]) > 1  # the second waited for the first
    assert came[C] == [t % LAYOUT.size for t in range(rounds)]


# -- deadlines -------------------------------------------------------------------------------------------------


def test_what_came_late_is_gathered_in_the_next_round_and_who_was_given_up_is_noted() -> None:
    board = MemoryNetwork(A, B)
    board.boxes[A] = Mailbox(Limits(late=1))
    got: list[list[tuple[PeerId, int | None]]] = []

    async def script(me: Policy) -> None:
        for t in (0, 1, 2):
            got.append([(o.sender, o.round) for o in await Gather([B], t)])
            if t == 0:
                await FakeClient(board, B).send(A, A, constant(2.0), round=0)

    (notes,) = run(script, board=board)
    assert got == [[], [(B, 0)], []]
    assert notes.given_up == [(0, (B,)), (1, (B,)), (2, (B,))]


def test_with_a_quorum_a_round_ends_when_enough_are_there() -> None:
    got: list[PeerId] = []

    async def mine(me: Policy) -> None:
        got.extend(o.sender for o in await Gather([B, C], 0))  # C never sends

    async def theirs(me: Policy) -> None:
        await Send([A], me.model, round=0)

    notes, _, _ = run(mine, theirs, nothing, waiting={"patience": 3600, "quorum": 0.5})
    assert got == [B]
    assert notes.given_up == []


def test_a_push_that_hangs_goes_on_beside_the_round_until_the_next_one() -> None:
    board = MemoryNetwork(A, B)
    hangs, may_go = asyncio.Event(), asyncio.Event()
    sent: list[int] = []
    answers: list[tuple[PeerId, ...]] = []

    class Hanging(FakeClient):
        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            if hangs.is_set():
                await may_go.wait()
            sent.append(said["round"])
            return await super().send(peer, address, model, **said)

    async def script(me: Policy) -> None:
        for t in range(9):
            if t == 4:
                hangs.set()
            if t == 7:
                may_go.set()
            answers.append(await Send([B], me.model, round=t))
            await Sleep(0.01)

    async def go() -> None:
        trainer = TrainerThread()
        made, _ = driver(board, A, script, trainer=trainer, waiting={"least": 0.01})
        object.__setattr__(made.context, "network", Hanging(board, A))
        await made.run()
        await trainer.close()

    asyncio.run(go())
    assert answers[:4] == [(B,)] * 4
    assert answers[4:7] == [()] * 3
    assert set(sent) >= {0, 1, 2, 3, 8}
    assert not {4, 5} & set(sent)  # the model of a later round took their place


def test_a_half_sent_model_is_finished_and_only_what_waits_for_it_is_replaced() -> None:
    board = MemoryNetwork(A, B)
    began, may_go = asyncio.Event(), asyncio.Event()
    busy = busiest = 0
    sent: list[int] = []
    answers: list[tuple[PeerId, ...]] = []

    class Slow(FakeClient):
        def transferring(self, peer: PeerId) -> bool:
            return began.is_set() and not may_go.is_set()

        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            nonlocal busy, busiest
            busy += 1
            busiest = max(busy, busiest)
            if said["round"] == 4:
                began.set()
                await may_go.wait()
            busy -= 1
            sent.append(said["round"])
            return await super().send(peer, address, model, **said)

    async def script(me: Policy) -> None:
        for t in range(9):
            if t == 7:
                may_go.set()
            answers.append(await Send([B], me.model, round=t))
            await Sleep(0.01)

    async def go() -> None:
        trainer = TrainerThread()
        made, _ = driver(board, A, script, trainer=trainer, waiting={"least": 0.01})
        object.__setattr__(made.context, "network", Slow(board, A))
        await made.run()
        await trainer.close()

    asyncio.run(go())
    assert answers[4:7] == [()] * 3
    assert sent[:5] == [0, 1, 2, 3, 4]
    assert 5 not in sent
    assert sent[-1] == 8
    assert busiest == 1


def test_a_node_is_not_quiet_while_a_model_arrives() -> None:
    board = MemoryNetwork(A, B)
    heard: list[str] = []

    class Waits(Scripted):
        quiet_after = 0.02

        async def on_model(self, offer: Offer) -> None:
            heard.append("model")

        async def on_quiet(self) -> None:
            heard.append("quiet")

    async def script(me: Policy) -> None:
        await Sleep(0.3)  # several times quiet_after
        heard.append("here")
        board.boxes[A].put(Offer(B, constant(1.0)))
        board.notifiers[A].notify("inbox")
        while "quiet" not in heard:
            await Sleep(0.01)

    board.boxes[A].admit(B, None)
    run(script, board=board, kind=Waits)
    assert heard[:3] == ["here", "model", "quiet"]


def test_a_node_whose_pushes_take_long_is_quiet_later() -> None:
    board = MemoryNetwork(A, B)
    quiet: list[float] = []
    sent: list[float] = []

    class Waits(Scripted):
        quiet_after = 0.02

        async def on_model(self, offer: Offer) -> None: ...

        async def on_quiet(self) -> None:
            quiet.append(asyncio.get_running_loop().time())

    class Slow(FakeClient):
        def transferring(self, peer: PeerId) -> bool:
            return True

        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            quiet.clear()
            sent.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.2)
            return await super().send(peer, address, model, **said)

    async def script(me: Policy) -> None:
        await Send([B], me.model)
        while not quiet:
            await Sleep(0.01)

    async def go() -> None:
        trainer = TrainerThread()
        made, _ = driver(board, A, script, kind=Waits, trainer=trainer)
        object.__setattr__(made.context, "network", Slow(board, A))
        await made.run()
        await trainer.close()

    asyncio.run(go())
    assert quiet[0] - sent[0] >= 0.5  # three pushes, and the node may have been quiet just before


def test_a_push_in_progress_counts_also_after_a_model_that_waited_for_it_was_replaced() -> None:
    board, lasted = MemoryNetwork(A, B), list[float]()

    class Slow(FakeClient):
        def transferring(self, peer: PeerId) -> bool:
            return True

        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            await asyncio.Event().wait()
            return 0

    async def go() -> None:
        async def script(me: Policy) -> None:
            for t in range(4):  # the first is sent, the others wait for it and replace each other
                await Send([B], me.model, round=t)
                await Sleep(0.01)
                lasted.append(made._pushes.seconds)

        trainer = TrainerThread()
        made, _ = driver(board, A, script, trainer=trainer, waiting={"transfer": 0.01})
        object.__setattr__(made.context, "network", Slow(board, A))
        await made.run()
        await trainer.close()

    asyncio.run(go())
    assert lasted == sorted(lasted)
    assert lasted[-1] >= 0.04


def test_a_node_says_that_a_link_is_too_slow_for_its_models() -> None:
    class TimesOut(FakeClient):
        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            raise PeerTimedOut(peer, "the stream stalled")

    async def script(me: Policy) -> None:
        for _ in range(5):
            await Send([B], me.model)

    async def go() -> list[PeerId]:
        board = MemoryNetwork(A, B)
        trainer = TrainerThread()
        made, recorder = driver(board, A, script, trainer=trainer)
        object.__setattr__(made.context, "network", TimesOut(board, A))
        await made.run()
        await trainer.close()
        return recorder.slow

    assert asyncio.run(go()) == [B]


def test_transfers_that_go_on_after_their_round_leave_their_slots_to_others() -> None:
    async def go() -> None:
        slots, never = PushSlots(2), asyncio.Event()

        async def push() -> None:
            async with slots.held():
                await never.wait()

        slow = [asyncio.create_task(push()) for _ in range(4)]
        await asyncio.sleep(0)
        for task in slow[:2]:
            slots.leave(task)
        await asyncio.sleep(0.01)
        slots.leave(slow[2])  # the third that goes on: the oldest is given up
        await asyncio.wait((slow[0],), timeout=5)
        assert [task.done() for task in slow] == [True, False, False, False]
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        for _ in range(2):  # no slot was released twice or lost
            await asyncio.wait_for(slots._free.acquire(), 1)
        assert slots._free.locked()

    asyncio.run(go())


def test_one_that_is_back_gets_a_model_though_rounds_are_shorter_than_a_push() -> None:
    board = MemoryNetwork(A, B)
    arrives, sent = asyncio.Event(), list[int]()

    class Slow(FakeClient):
        async def send(self, peer: PeerId, address: str, model: Model, **said: Any) -> int:
            await arrives.wait()
            sent.append(said["round"])
            return model.nbytes

    async def script(me: Policy) -> None:
        for t in range(3):
            assert await Send([B], me.model, round=t) == ()
            await Sleep(0.01)
        arrives.set()
        while not sent:
            await Sleep(0.01)

    async def go() -> None:
        trainer = TrainerThread()
        made, _ = driver(board, A, script, trainer=trainer)
        object.__setattr__(made.context, "network", Slow(board, A))
        receipts = made._pushes._receipts
        for number in range(MIN_HISTORY):
            receipts.answered(B, number, 3600.0)
        for number in range(SILENT):
            receipts.given_up(B, MIN_HISTORY + number, 1.0)
        await made.run()
        await trainer.close()

    asyncio.run(go())
    assert sent == [0]
