"""Creating a policy, and errors when the task lacks what it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pfl_node.errors import ConfigError, LayoutMismatch, PolicyFailed, TaskError
from pfl_node.model import Entry, Layout, Model
from pfl_node.node.ports import Plan
from pfl_node.node.startup import (
    check_correlated,
    check_fragments,
    check_lab,
    check_reports,
    entry_round,
    make_policy,
)
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.settings import Settings
from pfl_node.types import PeerId
from tests.toy import ToyLearner, constant


class Plain(Policy):
    async def main(self) -> None: ...


class Oracular(Plain):
    oracular = True


class TakesPredictions(Plain):
    takes = ("predictions",)


def made(cls: type[Policy], learner: ToyLearner, **more: Any) -> Policy:
    settings: dict[str, Any] = {"policy": {"name": "mine"}, "task": {"name": "ward"}, "rounds": 7, "seed": 3}
    told = Settings.model_validate(settings | more)
    return make_policy(Plan(cls, PolicyConfig()), told, PeerId("me"), learner, constant(1.0))


def test_a_policy_knows_its_run_and_how_many_samples_it_has() -> None:
    policy = made(Plain, ToyLearner())
    assert (policy.me, policy.rounds, policy.seed, policy.samples, policy.round) == ("me", 7, 3, 10, 0)


class Exact(Plain):
    exact = True


@pytest.mark.parametrize(
    ("cls", "given", "claim"),
    [(Plain, {}, 10.0), (Exact, {}, None), (Exact, {"claim": 3}, 3.0), (Plain, {"claim": None}, None)],
)
def test_claims_are_bounded_unless_the_policy_is_exact(
    cls: type[Policy], given: dict[str, Any], claim: float | None
) -> None:
    """FedAvg and FedED promise n_k / n; a number in the settings wins over that promise."""
    assert made(cls, ToyLearner(), aggregate=given).claim == claim


@pytest.mark.parametrize(
    ("privacy", "discreet"), [({}, False), ({"oracle": True}, True), ({"dp": True}, True), ({"dp_clip": 2}, False)]
)
def test_a_policy_knows_whether_its_data_are_private(privacy: dict[str, Any], discreet: bool) -> None:
    assert made(Plain, ToyLearner(), privacy=privacy).discreet is discreet


def test_chance_is_the_same_for_the_same_node_and_seed() -> None:
    assert made(Plain, ToyLearner()).rng.random() == made(Plain, ToyLearner()).rng.random()


def test_only_an_oracle_is_told_the_truth() -> None:
    learner = ToyLearner(cluster=4)
    assert (made(Plain, learner).truth, made(Oracular, learner).truth) == (None, 4)


def test_an_oracle_needs_a_task_that_knows_the_truth() -> None:
    with pytest.raises(TaskError, match="policy mine needs the true cluster, but task ward defines none"):
        made(Oracular, ToyLearner())


def test_who_learns_from_predictions_needs_auxiliary_samples() -> None:
    learner = ToyLearner()
    assert made(TakesPredictions, learner)
    learner.predictions = None  # type: ignore[assignment]
    with pytest.raises(TaskError, match="policy mine needs auxiliary samples, but task ward has none"):
        made(TakesPredictions, learner)


class OnlyGradients(Plain):
    only_gradients = True


def test_who_moves_along_gradients_needs_a_task_without_private_parameters() -> None:
    """A private buffer, such as a scaler, is not trained by any policy."""
    scaler, own = Entry("scaler.mean", (2,), trained=False), Entry("bn.weight", (2,))
    learner = ToyLearner()
    learner.private_layout = Layout((scaler,), ())
    assert made(OnlyGradients, learner)
    learner.private_layout = Layout((own, scaler), ())
    assert made(Plain, learner)
    with pytest.raises(ConfigError, match=r"parameters that are sent, and bn\.weight of task ward is private"):
        made(OnlyGradients, learner)


def test_who_moves_along_gradients_needs_a_model_without_batch_statistics() -> None:
    """Only a training moves them."""
    learner = ToyLearner()
    learner.layout = Layout(
        (Entry("w", (2,)), Entry("bn.running_mean", (2,), trained=False)), (Entry("head", (1,)),)
    )
    assert made(Plain, learner)
    with pytest.raises(ConfigError, match=r"bn\.running_mean of task ward has none: use a model without batch"):
        made(OnlyGradients, learner)


class MakesFloat64(Plain):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.c = Model(self.model.layout, np.zeros(self.model.layout.size))  # type: ignore[arg-type]


class ForgetsSuper(Plain):
    def __init__(self, **given: Any) -> None:
        self.c = self.model


@pytest.mark.parametrize(
    ("cls", "says"), [(MakesFloat64, "the layout holds .* is float64"), (ForgetsSuper, "AttributeError: ")]
)
def test_an_error_in_the_init_of_a_policy_is_one_line_that_names_policy_and_place(
    cls: type[Policy], says: str
) -> None:
    with pytest.raises(
        PolicyFailed, match=rf"^policy mine.py:M failed \(test_startup.py, line \d+\): {says}[^\n]*$"
    ):
        made(cls, ToyLearner(), policy={"name": "mine.py:M"})
    with pytest.raises((LayoutMismatch, AttributeError)):  # one of ours: a bug, with its traceback
        made(cls, ToyLearner())


class InStep(Plain):
    lockstep = True


@pytest.mark.parametrize(
    ("mine", "swarm", "begins"),
    [(0, 0, 0), (0, 3, 0), (0, 5, 5), (0, 9, 7), (5, 2, 5)],
)
def test_a_late_node_begins_where_half_of_the_others_are(mine: int, swarm: int, begins: int) -> None:
    policy = made(InStep, ToyLearner())
    policy.round = mine
    assert entry_round(policy, swarm) == begins


def test_rounds_that_are_a_nodes_own_begin_where_it_was() -> None:
    assert entry_round(made(Plain, ToyLearner()), 6) == 0


def test_a_main_that_reports_nothing_is_a_mistake_that_is_named() -> None:
    with pytest.raises(ConfigError, match=r"policy mine.py:M: its main\(\) returned without reporting a round"):
        check_reports("mine.py:M", 0, had_rounds=True)
    check_reports("mine.py:M", 1, had_rounds=True)
    check_reports("mine.py:M", 0, had_rounds=False)


def test_a_daemon_refuses_to_be_malicious_and_a_lab_does_not() -> None:
    told = Settings.model_validate({"attack": {"kind": ["sign_flip"]}})
    with pytest.raises(ConfigError, match=r"attack\.kind makes nodes malicious"):
        check_lab(Plain, told, lab=False)
    check_lab(Plain, told, lab=True)


CORRELATED = {"dp": True, "dp_correlated": True}


@pytest.mark.parametrize(
    ("policy", "privacy", "aggregate", "says"),
    [
        ({"name": "dpsgd"}, {"dp_correlated": True}, {}, "privacy.dp, which is off"),
        ({"name": "gossip"}, CORRELATED, {}, "does not work with policy gossip"),
        ({"name": "facade"}, CORRELATED, {}, "does not work with policy facade"),
        ({"name": "deprl"}, CORRELATED, {}, "does not work with policy deprl"),
        ({"name": "fedavg"}, CORRELATED, {}, "does not work with policy fedavg"),
        ({"name": "choco"}, CORRELATED, {}, "does not work with policy choco"),
        ({"name": "scaffold"}, CORRELATED, {}, "does not work with policy scaffold"),
        ({"name": "el", "graph": "own"}, CORRELATED, {}, "el with policy.graph = shared"),
        ({"name": "el"}, CORRELATED | {"dp_colluders": 4}, {}, "no honest one of 4 neighbours"),
        ({"name": "dpsgd", "degree": 1}, CORRELATED, {}, "raise the degree of the graph, lower"),
        ({"name": "dpsgd", "graph": "ring"}, CORRELATED | {"dp_colluders": 5}, {}, "or leave out"),
        ({"name": "el"}, CORRELATED, {"rule": "median"}, "aggregate.rule = mean"),
        ({"name": "el"}, CORRELATED, None, "wire.compress"),
    ],
)
def test_noise_that_could_not_cancel_is_refused_in_one_line(
    policy: dict[str, Any], privacy: dict[str, Any], aggregate: dict[str, Any] | None, says: str
) -> None:
    more = {"aggregate": aggregate} if aggregate is not None else {"wire": {"compress": "top:0.2"}}
    settings = Settings.model_validate({"policy": policy, "privacy": privacy, **more})
    cls = load_policy(settings.policy.name)
    with pytest.raises(ConfigError, match=says) as refused:
        check_correlated(cls, configure(cls, settings.policy.options), settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "degree"),
    [({"name": "dpsgd"}, 4), ({"name": "dpsgd", "graph": "ring"}, 2), ({"name": "el", "degree": 7}, 7)],
)
def test_policies_that_exchange_whole_models_both_ways_state_their_degree(
    policy: dict[str, Any], degree: int
) -> None:
    settings = Settings.model_validate({"policy": policy, "privacy": CORRELATED})
    cls = load_policy(settings.policy.name)
    cfg = configure(cls, settings.policy.options)
    check_correlated(cls, cfg, settings)
    assert cls.pair_degree(cfg) == degree


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
@pytest.mark.parametrize(
    ("policy", "compress", "says"),
    [
        (
            "mosaic",
            "none",
            "policy mosaic sends fragments: use median, trimmed_mean or clipping, or another policy",
        ),
        ("el", "fragments:16", "wire.compress = fragments:16 sends fragments: use .* or wire.compress = none"),
    ],
)
def test_fragments_are_refused_with_a_rule_that_compares_whole_models(
    rule: str, policy: str, compress: str, says: str
) -> None:
    more = {"aggregate": {"rule": rule}, "wire": {"compress": compress}}
    with pytest.raises(ConfigError, match=f"aggregate.rule = {rule} compares whole models, and {says}"):
        made(load_policy(policy), ToyLearner(), policy={"name": policy}, **more)


@pytest.mark.parametrize(
    ("policy", "rule", "compress"),
    [("mosaic", "median", "none"), ("el", "clipping", "fragments:16"), ("el", "krum", "top:0.2")],
)
def test_other_rules_take_fragments(policy: str, rule: str, compress: str) -> None:
    settings = Settings.model_validate({"aggregate": {"rule": rule}, "wire": {"compress": compress}})
    check_fragments(load_policy(policy), settings)


def test_an_attribute_that_is_kept_but_never_set_is_named_before_the_first_round() -> None:
    class Forgets(Plain):
        keeps = ("c",)

    with pytest.raises(ConfigError, match="policy mine keeps 'c', which its __init__ does not set"):
        made(Forgets, ToyLearner())
