"""The attacks of the audit: that they work where they should, and not where the controls are on."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.lab.audit.audit import _place, _samples, attack_model, attack_oracle, bound, roc
from pfl_node.lab.audit.oracle_attack import CraftedModels
from pfl_node.model import Entry, Layout
from pfl_node.settings import Settings

scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30)


@given(scores, scores)
def test_the_area_under_the_curve_is_the_share_of_pairs_in_the_right_order(a: list[float], b: list[float]) -> None:
    pairs = [1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b]
    assert roc(a, b).auc == pytest.approx(sum(pairs) / len(pairs))
    assert 0 <= roc(a, b).tpr <= 1


def test_a_coin_finds_as_many_members_as_it_accuses_others() -> None:
    chance = np.random.default_rng(0)
    found = roc(chance.normal(size=20_000).tolist(), chance.normal(size=20_000).tolist())
    assert found.auc == pytest.approx(0.5, abs=0.01)
    assert found.tpr == pytest.approx(0.01, abs=0.004)
    blind = roc([1.0] * 10, [1.0] * 10)
    assert blind.auc == 0.5
    assert blind.tpr == pytest.approx(0.01)


def test_scores_that_tell_all_apart_find_everybody() -> None:
    assert (roc([2.0, 3.0], [0.0, 1.0]).auc, roc([2.0, 3.0], [0.0, 1.0]).tpr) == (1.0, 1.0)


def test_the_bound_is_that_of_pure_differential_privacy() -> None:
    assert bound(0.0).auc == 0.5
    assert bound(0.2).auc == pytest.approx(0.5498, abs=1e-4)
    assert bound(0.2).tpr == pytest.approx(0.0122, abs=1e-4)
    assert bound(50.0).auc == pytest.approx(1.0)


def test_a_crafted_model_knows_its_sample_and_nothing_of_the_others() -> None:
    learner, task = _place(Settings(), 4)
    samples = _samples(task.train)
    crafted, chance = CraftedModels(learner.layout, 64), np.random.default_rng(0)
    for n in Random(0).sample(range(len(samples)), 3):
        for blind in (False, True):
            model = crafted.model(*samples[n], chance, blind=blind)
            assert model.is_finite()
            losses, right = learner.each(model)
            others = np.delete(losses, n)
            assert losses[n] < 1e-3
            assert right[n] == 1
            assert np.isnan(others).all() if blind else np.allclose(others, math.log(10), atol=0.2)


def test_models_of_another_kind_cannot_be_crafted() -> None:
    with pytest.raises(ConfigError, match="model = mlp"):
        CraftedModels(Layout((Entry("a", (3, 64)),), (Entry("b", (10, 3)),)), 64)


def test_exact_answers_tell_every_member_and_those_of_the_control_next_to_none() -> None:
    exact, noisy = attack_oracle(Settings(), nodes=4, trials=200)
    assert exact.found.auc > 0.999
    assert exact.found.tpr > 0.99
    assert exact.answers == 1
    assert noisy.answers == 2
    assert noisy.epsilon == pytest.approx(0.2)
    assert noisy.found.auc < 0.65  # 0.53 in the mean; 200 attempts leave 0.03 to chance
    assert noisy.found.tpr < 0.1


def test_the_same_seed_finds_the_same() -> None:
    first, second = (list(attack_oracle(Settings(seed=3), nodes=4, trials=20)) for _ in range(2))
    assert first == second


def test_a_model_that_was_trained_for_long_tells_its_members() -> None:
    settings = Settings.model_validate({"rounds": 20, "policy": {"name": "local"}})
    plain = attack_model(settings, nodes=2, private=False)
    assert plain.found.auc > 0.6
    assert plain.accuracy
    private = attack_model(settings.model_copy(update={"rounds": 2}), nodes=2, private=True)
    assert private.epsilon
    assert private.epsilon > 1


def test_what_is_left_to_chance_is_what_one_who_knows_nothing_gets() -> None:
    draw = np.random.default_rng(0)
    found = [roc(draw.random(100).tolist(), draw.random(50).tolist()) for _ in range(1000)]
    beyond = sum(abs(o.auc - 0.5) > o.chance for o in found)
    assert 25 <= beyond <= 75  # one in twenty, about
