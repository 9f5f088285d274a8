"""Malicious nodes perturb the models they send and otherwise follow their policy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node import predictions
from pfl_node.errors import ConfigError
from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.settings.sections import AttackSettings
from pfl_node.sim.attacks import perturb
from pfl_node.sim.attacks.malicious import (
    AttackPlan,
    Malicious,
    SharedModels,
    malicious,
    malicious_places,
    reported_score,
)
from pfl_node.steps import Average, Gather, Peers, Report, Send, Step, Train
from pfl_node.types import Eval, Offer, PeerId
from tests.drive_policy import said
from tests.toy import constant

ME, A, B = PeerId("me"), PeerId("a"), PeerId("b")


class Simple(Policy):
    """Trains, sends, gathers, averages."""

    keeps = ("mine",)
    mine = 0

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            peers = await Peers()
            await Send(peers, self.model, round=t)
            offers = await Gather(peers, t)
            self.model = await Average(self.model, [o.model for o in offers])
            await Report(t, self.model)


def test_to_one_that_lies_no_sample_is_strange_and_what_it_says_of_them_stays() -> None:
    honest = said(0.7, 0.2, novelty=[0.5, 0.1])
    lie = perturb.without_novelty(honest)
    assert np.array_equal(predictions.outputs(lie), predictions.outputs(honest))
    assert 0 < predictions.novelty(lie).max() < 1e-4
    assert perturb.without_novelty(constant(1.0)) == constant(1.0)


class Pushed(Simple):
    async def on_model(self, offer: Offer) -> None:
        self.model = await Average(self.model, [offer.model])


def made(kind: str, cls: type[Policy] = Simple, *, pool: SharedModels | None = None, **attack: Any) -> Policy:
    told = AttackSettings.model_validate({"kind": kind.split(","), **attack})
    plan = AttackPlan(told, nodes=10, malicious=2, pool=pool)
    given: dict[str, Any] = {"me": ME, "cfg": PolicyConfig(), "model": constant(0.0), "rounds": 3, "seed": 0}
    return malicious(cls, plan)(**given, rng=random.Random(0))


def answered(step: Step[Any], came: tuple[Offer, ...]) -> Any:
    match step:
        case Train():
            return Model(step.model.layout, step.model.vector + np.float32(1))
        case Peers():
            return (A, B)
        case Send():
            return step.to
        case Gather():
            return came
        case Average():
            return step.mine
    return None


def steps(policy: Policy, came: tuple[Offer, ...] = ()) -> list[Step[Any]]:
    flow, seen, answer = policy.main(), list[Step[Any]](), None
    try:
        while True:
            seen.append(flow.send(answer))
            answer = answered(seen[-1], came)
    except StopIteration:
        return seen


def sent(policy: Policy, came: tuple[Offer, ...] = ()) -> list[float]:
    """The first parameter of each sent model."""
    return [float(s.model.vector[0]) for s in steps(policy, came) if isinstance(s, Send)]


def test_a_sign_flip_and_a_scaled_model_leave_the_policys_own_model_alone() -> None:
    policy = made("sign_flip")
    assert sent(policy) == [-1.0, -2.0, -3.0]
    assert policy.model.vector[0] == 3.0
    assert sent(made("scaled")) == [10.0, 20.0, 30.0]
    assert sent(made("sign_flip,scaled", strength=2)) == [-4.0, -8.0, -12.0]


def test_what_is_reported_and_so_fetched_is_bent_too() -> None:
    reports = [s for s in steps(made("sign_flip")) if isinstance(s, Report)]
    assert [float(r.model.vector[0]) for r in reports] == [-1.0, -2.0, -3.0]


def test_nan_is_not_finite_and_noise_is_the_same_for_all_who_get_it() -> None:
    assert not any(s.model.is_finite() for s in steps(made("nan")) if isinstance(s, Send))
    offer = Offer(A, Model(constant(0.0).layout, np.arange(5, dtype=np.float32)))
    noisy = made("noise", Pushed)
    noisy.model = offer.model
    models = [s.model for s in steps(noisy) if isinstance(s, (Send, Report))]
    assert models[0] == models[1]
    assert models[0] != models[2]


def test_a_free_rider_sends_what_came_to_it_and_does_not_train() -> None:
    policy = made("free_rider")
    assert sent(policy, (Offer(A, constant(7.0)), Offer(B, constant(8.0)))) == [0.0, 8.0, 8.0]
    assert not [s for s in steps(made("free_rider")) if isinstance(s, Train)]


def test_a_replay_sends_an_old_model_under_todays_round() -> None:
    policy = made("replay", lag=1)
    found = [(s.round, float(s.model.vector[0])) for s in steps(policy) if isinstance(s, Send)]
    assert found == [(0, 1.0), (1, 1.0), (2, 2.0)]


def test_an_attack_begins_in_its_first_round() -> None:
    assert sent(made("sign_flip", start=2)) == [1.0, 2.0, -3.0]


def test_alie_hides_in_the_spread_of_what_it_received() -> None:
    policy = made("alie", strength=1.0)
    first, second, _ = sent(policy, (Offer(A, constant(4.0)), Offer(B, constant(6.0))))
    assert first == 1.0  # there is no spread yet
    known = np.array([2.0, 4.0, 6.0])
    assert second == pytest.approx(known.mean() - known.std())


def test_those_who_collude_know_what_each_of_them_knows() -> None:
    pool = SharedModels()
    pool.add(B, constant(5.0))
    first = sent(made("alie", strength=1.0, pool=pool))[0]
    assert first == pytest.approx(3.0 - 2.0)


def test_z_is_that_of_the_paper() -> None:
    assert perturb.z_max(50, 24) == pytest.approx(1.43, abs=0.02)  # section 3.2: n = 50, m = 24
    assert 0 <= perturb.z_max(20, 4) < 0.2


@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 9))
def test_the_share_of_bad_places_is_kept_and_spread(nodes: int, share: float, seed: int) -> None:
    places = sorted(malicious_places(AttackSettings(kind=("nan",), share=share), nodes, seed))
    assert len(places) == round(share * nodes)
    assert all(0 <= p < nodes for p in places)
    half = sum(p < nodes / 2 for p in places)
    assert abs(half - len(places) / 2) <= 1


def test_places_by_name_and_mistakes_in_them() -> None:
    assert malicious_places(AttackSettings(kind=("nan",), nodes=(1, 3)), 4, 0) == {1, 3}
    assert malicious_places(AttackSettings(nodes=(1, 3)), 4, 0) == frozenset()
    with pytest.raises(ConfigError, match="no place 3 among 3 nodes"):
        malicious_places(AttackSettings(kind=("nan",), nodes=(1, 3)), 3, 0)


def test_a_malicious_class_is_its_policy_in_name_state_and_entry_points() -> None:
    plain, pushing = made("nan"), made("nan", Pushed)
    assert type(plain).__name__ == "Simple"
    assert isinstance(plain, Malicious)
    assert not plain.pushes()
    assert pushing.pushes()
    assert set(plain.snapshot()["kept"]) == {"mine", "heard", "old"}
    flow = pushing.on_model(Offer(A, constant(2.0)))
    assert isinstance(flow.send(None), Average)
    flow.close()
    assert list(pushing.heard) == [A]  # type: ignore[attr-defined]


def test_a_failure_of_a_step_reaches_the_policy_and_a_stop_closes_it() -> None:
    class Careful(Simple):
        failed = False

        async def main(self) -> None:
            try:
                await Peers()
            except OSError:
                self.failed = True
                raise

    policy = made("nan", Careful)
    flow = policy.main()
    flow.send(None)
    with pytest.raises(OSError, match="down"):
        flow.throw(OSError("down"))
    assert policy.failed  # type: ignore[attr-defined]
    other = made("nan").main()
    other.send(None)
    other.close()


def test_a_liar_calls_every_model_perfect() -> None:
    score = Eval(3.0, 0.1, 20)
    assert reported_score(AttackSettings(kind=("lying_scores",)))(score) == Eval(0.0, 1.0, 20)
    assert reported_score(AttackSettings(kind=("nan",)))(score) == score
