"""Caches the last average: nodes that average the same models, as in FedAvg, compute it once."""

from __future__ import annotations

from typing import Any

from pfl_node import aggregate
from pfl_node.aggregate import Rule
from pfl_node.model import Model
from pfl_node.steps import Average


class AverageCache:
    """The last result for nodes whose own model has no weight. A simulation passes models by reference, so their
    memory address identifies them. The cache keeps the inputs alive, so that no address is reused."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._inputs: tuple[Model, ...] = ()
        self._result: Model | None = None

    def combine(self, rule: Rule, step: Average) -> Model:
        """Like `aggregate.combine`."""
        if step.own or rule.rule == "clipping":  # the result depends on the node's own model
            return _combine(rule, step)
        weights = None if step.weights is None else tuple(step.weights)
        key = (tuple(_identity(model) for model in step.others), weights, step.claimed)
        if self._result is None or key != self._key:
            result = _combine(rule, step)
            if result is step.mine:  # no other model was usable
                return result
            self._key, self._inputs, self._result = key, tuple(step.others), result
        return self._result


def _combine(rule: Rule, step: Average) -> Model:
    return aggregate.combine(rule, step.mine, step.others, step.weights, step.own, claimed=step.claimed)


def _identity(model: Model) -> tuple[int, int, str]:
    return model.vector.__array_interface__["data"][0], model.vector.size, model.layout.digest
