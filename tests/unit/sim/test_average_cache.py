from __future__ import annotations

import pytest

from pfl_node import aggregate
from pfl_node.aggregate import combine
from pfl_node.model import Model
from pfl_node.settings import AggregateSettings, PolicySettings, Settings
from pfl_node.sim import simulate
from pfl_node.sim.inline_trainer import AverageCache
from pfl_node.steps import Average
from tests.toy import constant
from tests.unit.sim.toy_swarms import toy

RULE = AggregateSettings()


@pytest.fixture
def blended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of models in each call of `combine`."""
    seen: list[int] = []

    def counting(rule: AggregateSettings, mine: Model, others: list[Model], *told: object, **more: bool) -> Model:
        seen.append(len(others))
        return combine(rule, mine, others, *told, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(aggregate, "combine", counting)
    return seen


def again(model: Model) -> Model:
    """The model as another node has it: a new object that shares the array."""
    return Model(model.layout, model.vector)


def test_nodes_that_average_the_same_models_do_it_once(blended: list[int]) -> None:
    averages, others = AverageCache(), [constant(1.0), constant(4.0)]
    found = [
        averages.combine(RULE, Average(constant(node), [again(o) for o in others], [1.0, 2.0], own=0.0))
        for node in (7.0, 8.0, 9.0)
    ]
    assert blended == [2]
    assert all(model == constant(3.0) for model in found)


def test_other_models_weights_or_a_model_of_ones_own_are_another_average(blended: list[int]) -> None:
    averages, others = AverageCache(), [constant(1.0), constant(4.0)]
    asked = [
        Average(constant(7.0), others, [1.0, 2.0], own=0.0),
        Average(constant(7.0), others, [2.0, 1.0], own=0.0),
        Average(constant(7.0), others[:1], [1.0], own=0.0),
        Average(constant(7.0), [constant(1.0), constant(4.0)], [2.0, 1.0], own=0.0),
        Average(constant(7.0), others, [1.0, 2.0], own=1.0),
        Average(constant(6.0), others, [1.0, 2.0], own=1.0),
    ]
    found = [averages.combine(RULE, step) for step in asked]
    assert len(blended) == len(asked)
    assert found == [combine(RULE, s.mine, s.others, s.weights, s.own) for s in asked]


def test_a_node_that_can_use_nothing_keeps_its_own_model() -> None:
    averages, bad = AverageCache(), constant(float("nan"))
    for mine in (constant(1.0), constant(2.0)):
        assert averages.combine(RULE, Average(mine, [bad], own=0.0)) is mine


def test_clipping_has_another_centre_at_every_node(blended: list[int]) -> None:
    averages, others = AverageCache(), [constant(1.0), constant(4.0)]
    for node in (7.0, 8.0):
        averages.combine(AggregateSettings(rule="clipping"), Average(constant(node), others, own=0.0))
    assert blended == [2, 2]


def test_a_round_of_fedavg_is_averaged_once(blended: list[int]) -> None:
    settings = Settings(rounds=3, policy=PolicySettings(name="fedavg", C=1.0))  # type: ignore[call-arg]
    simulate(settings, nodes=6, load=toy)
    assert blended == [6, 6, 6]
