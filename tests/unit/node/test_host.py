"""Calls of peers: admission, delivery, evaluation, counting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import Reason, Refused
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.host import OTHERS, Host
from pfl_node.node.notifier import Notifier
from pfl_node.policies.base import Policy
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Limits, Mailbox
from pfl_node.protocol.published import PublishedModels
from pfl_node.protocol.rate_limit import NAMES
from pfl_node.settings import ServeSettings
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Publish
from pfl_node.types import Envelope, Offer, Part, PeerId, weight
from tests.toy import ToyLearner, constant

ME, YOU = PeerId("me"), PeerId("you")


def make_host(**serve: Any) -> Host:
    settings = ServeSettings.model_validate(serve)
    box = Mailbox(Limits(per_peer=settings.per_peer, inbox=settings.inbox))
    window = PublishedModels(ME, settings, Policy.serves)
    return Host(ME, "run", settings, box, Notifier(), window=window)


def opening(host: Host, learner: ToyLearner, thread: TrainerThread) -> None:
    host.open(learner, ThreadTrainer.of(thread, learner))


def opened(**serve: Any) -> Host:
    made = make_host(**serve)
    opening(made, ToyLearner(), TrainerThread())
    return made


def envelope(sender: str = YOU, run: str = "run", round: int | None = None, part: Part = "model") -> Envelope:
    return Envelope(sender=PeerId(sender), run=run, round=round, part=part)


async def admit(host: Host, call: str, said: Envelope) -> Reason | None:
    try:
        host.admit(call, said)
    except Refused as error:
        return error.reason
    return None


def test_a_peer_whose_transfer_broke_off_is_awaited_and_one_whose_model_is_unusable_is_not() -> None:
    async def go() -> None:
        host = opened()
        host.guard = Guard(GuardSettings(), certain=True)
        for resumes, missing in ((True, [YOU]), (False, [])):
            host.admit("SendModel", envelope(round=3))
            host.cancel("SendModel", envelope(round=3), resumes=resumes)
            assert host.mailbox.missing([YOU], 3) == missing
            assert host.mailbox.size == 0

    asyncio.run(go())


def test_nothing_is_taken_before_the_learner_is_there_and_after_it_is_closed() -> None:
    async def go() -> None:
        host = make_host()
        assert await admit(host, "SendModel", envelope()) is Reason.NOT_READY
        with pytest.raises(Refused):
            host.layout("model")
        opening(host, ToyLearner(), TrainerThread())
        assert await admit(host, "SendModel", envelope()) is None
        host.close()
        assert await admit(host, "SendModel", envelope()) is Reason.NOT_READY

    asyncio.run(go())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (envelope(run="other"), Reason.UNKNOWN_RUN),
        (envelope(sender=ME), Reason.UNKNOWN_PEER),
        (envelope(sender=""), Reason.UNKNOWN_PEER),
        (envelope(sender="x" * 65), Reason.UNKNOWN_PEER),
        (envelope(round=99), Reason.FUTURE_ROUND),
        (envelope(part="head"), Reason.LAYOUT),
        (envelope(part="core", round=0), Reason.LAYOUT),
    ],
)
def test_a_wrong_envelope_is_refused_with_its_reason(said: Envelope, reason: Reason) -> None:
    assert asyncio.run(admit(opened(), "SendModel", said)) is reason


def test_a_third_waiting_model_of_one_peer_is_a_flood_and_others_are_not_affected() -> None:
    async def go() -> None:
        host = opened(per_peer=2)
        for _ in range(2):
            assert await admit(host, "SendModel", envelope()) is None
            host.deliver(Offer(YOU, constant(1.0)))
        assert await admit(host, "SendModel", envelope()) is Reason.FLOOD
        assert await admit(host, "SendModel", envelope(sender="third")) is None
        assert len(host.mailbox) == 2

    asyncio.run(go())


def test_a_model_that_broke_off_gives_its_place_back() -> None:
    async def go() -> None:
        host = opened(per_peer=1)
        assert await admit(host, "SendModel", envelope()) is None
        assert await admit(host, "SendModel", envelope()) is Reason.FLOOD
        host.cancel("SendModel", envelope())
        assert await admit(host, "SendModel", envelope()) is None

    asyncio.run(go())


def test_services_that_are_off_are_not_served() -> None:
    async def go() -> None:
        host = opened(evaluate=False, head=False, model=False)
        for call in ("EvaluateModel", "GetHead", "GetModel"):
            assert await admit(host, call, envelope()) is Reason.NOT_SERVED

    asyncio.run(go())


def test_an_evaluation_is_scored_on_my_data_and_frees_its_place() -> None:
    async def go() -> None:
        trainer = TrainerThread()
        host = make_host(per_peer=1)
        opening(host, ToyLearner(point=2.0), trainer)
        assert await admit(host, "EvaluateModel", envelope()) is None
        assert await admit(host, "EvaluateModel", envelope()) is Reason.FLOOD
        score = await host.evaluate(Offer(YOU, constant(5.0)))
        assert score.loss == 3.0
        assert await admit(host, "EvaluateModel", envelope()) is None
        await trainer.close()

    asyncio.run(go())


def test_what_is_published_is_served_in_parts() -> None:
    async def go() -> None:
        host = opened()
        with pytest.raises(Refused, match="has published no model yet"):
            host.serve("model")
        host.publish(Publish(constant(4.0), 7, tag=1, notes={"a": 0.5}))
        offer = host.serve("head")
        assert (offer.sender, offer.round, offer.samples, offer.tag, dict(offer.notes)) == (
            ME,
            7,
            10,
            1,
            {"a": 0.5},
        )
        assert offer.model == constant(4.0).head
        with pytest.raises(Refused, match="has published no predictions yet"):
            host.serve("predictions")
        said = ToyLearner().predict(constant(1.0), seed=0)
        host.publish(Publish(said, 8))
        assert (host.serve("predictions").model, host.serve("model").round) == (said, 7)

    asyncio.run(go())


def test_predictions_of_other_samples_than_mine_do_not_fit_and_without_samples_none_do() -> None:
    async def go() -> None:
        host = opened()
        assert host.layout("predictions") == ToyLearner.predictions
        learner = ToyLearner()
        learner.predictions = None  # type: ignore[assignment]
        opening(host, learner, TrainerThread())
        with pytest.raises(Refused, match="no auxiliary samples"):
            host.layout("predictions")

    asyncio.run(go())


def test_refusals_are_counted_by_reason() -> None:
    async def go() -> Host:
        host = make_host()
        host.count("SendModel", "ok", YOU, 100)
        host.count("SendModel", "layout", YOU, 0)
        host.count("EvaluateModel", "layout", YOU, 0)
        host.count("GetModel", "ok", YOU, 70)
        host.count("GetHead", "not_ready", YOU, 0)
        return host

    host = asyncio.run(go())
    assert host.refused == {"layout": 2, "not_ready": 1}
    assert (host.bytes_in, host.bytes_out, dict(host.served)) == (100, 70, {YOU: 1})


def test_the_names_of_callers_that_were_refused_are_not_kept() -> None:
    async def go() -> Host:
        host = opened()
        for n in range(100):
            host.count("GetModel", "unknown_run", f"invented {n}", 0)
        return host

    assert not asyncio.run(go()).served


def test_one_that_sends_models_for_the_same_round_without_an_end_is_a_flood() -> None:
    async def go() -> None:
        host = opened(models_per_minute=3)
        for _ in range(3):
            assert await admit(host, "SendModel", envelope(round=0)) is None
            host.deliver(Offer(YOU, constant(0.0), 0))
        assert await admit(host, "SendModel", envelope(round=0)) is Reason.FLOOD
        assert await admit(host, "SendModel", envelope("third", round=0)) is None

    asyncio.run(go())


def test_the_bytes_of_models_that_are_scored_are_bounded_and_notes_weigh_too() -> None:
    async def go() -> None:
        host = opened(waiting_per_peer=1000)
        whole = host.layout("model").nbytes
        heavy = Envelope(PeerId("a"), "run", notes={f"{i}": 0.0 for i in range(4)})
        assert await admit(host, "EvaluateModel", heavy) is None
        assert await admit(host, "EvaluateModel", envelope("b")) is None
        assert whole < 100 < weight(heavy.notes) < 1000
        assert await admit(host, "EvaluateModel", Envelope(PeerId("c"), "run", notes=heavy.notes)) is Reason.FLOOD
        host.close()  # admitted calls still finish
        host.cancel("EvaluateModel", heavy)
        host.cancel("EvaluateModel", envelope("b"))
        opening(host, ToyLearner(), TrainerThread())
        huge = Envelope(PeerId("c"), "run", notes={f"{i}": 0.0 for i in range(40)})
        assert await admit(host, "EvaluateModel", huge) is None  # a single one may be larger

    asyncio.run(go())


def test_one_whose_models_take_too_long_to_score_is_refused_for_a_while() -> None:
    async def go() -> None:
        host = opened(scoring=1e-9)
        assert await admit(host, "EvaluateModel", envelope()) is None
        await host.evaluate(Offer(YOU, constant(0.0)))
        assert await admit(host, "EvaluateModel", envelope()) is Reason.FLOOD
        assert await admit(host, "EvaluateModel", envelope("third")) is None

    asyncio.run(go())


@pytest.mark.parametrize("part", ["core", "head"])
def test_a_part_alone_is_not_evaluated(part: Part) -> None:
    host = opened()
    assert asyncio.run(admit(host, "EvaluateModel", envelope(part=part))) is Reason.LAYOUT


def test_a_model_that_arrives_when_the_node_has_stopped_is_refused_and_not_lost() -> None:
    async def go() -> None:
        host = opened(per_peer=1)
        assert await admit(host, "SendModel", envelope()) is None
        host.close()
        with pytest.raises(Refused) as caught:
            host.deliver(Offer(YOU, constant(1.0)))
        assert caught.value.reason is Reason.NOT_READY
        assert (host.mailbox.held, host.received) == (0, {})
        host.mailbox.admit(YOU, None)  # its slot was released

    asyncio.run(go())


def test_invented_names_do_not_pile_up_and_the_totals_stay_right() -> None:
    """Without TLS a caller can use a new name for every call."""
    r = opened()
    for n in range(3 * NAMES):
        for call in ("SendModel", "GetModel"):
            r.count(call, "ok", f"somebody-{n}", 10)
        r.received[PeerId(f"somebody-{n}")] += 1
    r.count("GetModel", "ok", YOU, 10)
    assert [len(found) for found in (r.received, r.served, r.moved)] == [NAMES + 1, NAMES + 1, NAMES]
    assert (r.received.total(), r.served.total()) == (3 * NAMES, 3 * NAMES + 1)
    assert (r.served[YOU], r.moved[YOU, "out"]) == (1, 10)
    assert r.served[PeerId("somebody-0")] == 0
    assert r.served[OTHERS] == 2 * NAMES + 1


def test_a_sender_whose_name_no_node_can_have_is_refused() -> None:
    r = opened()
    for name in ("", "x" * 65, "\U0001f600", ME):
        with pytest.raises(Refused, match="is not a valid sender"):
            r.admit("GetModel", envelope(name))
