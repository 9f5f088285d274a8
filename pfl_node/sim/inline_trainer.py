"""The trainer of a simulated node: jobs are submitted at once and answered at their virtual completion time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfl_node import aggregate
from pfl_node.aggregate import Rule
from pfl_node.model import Model, PartialModel
from pfl_node.node.ports import Job, LearnerFacts
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.settings import AggregateSettings
from pfl_node.sim.costs import seconds_of
from pfl_node.sim.job_pool import Result
from pfl_node.steps import Average

if TYPE_CHECKING:
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World


class AverageCache:
    """The last result for nodes whose own model has no weight. A simulation passes models by reference, so their
    memory address identifies them. The cache keeps the inputs alive, so that no address is reused."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._inputs: tuple[Model, ...] = ()
        self._result: Model | None = None

    def combine(self, rule: Rule, step: Average) -> Model:
        """Like `aggregate.combine`."""
        partial = any(isinstance(model, PartialModel) for model in step.others)
        if step.own or rule.rule == "clipping" or partial:  # the result depends on the node's own model
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


@dataclass(slots=True, eq=False)
class Due:
    """A long job and its completion time, which every short job postpones."""

    at: float


class InlineTrainer:
    """Created at every start of the node. Uses simulation time: a skewed clock does not change compute speed."""

    def __init__(self, process: Process, world: World) -> None:
        self._me = process
        self._world = world
        self._long: dict[Due, None] = {}  # long jobs in progress, first come, first served
        self._soon = 0.0  # completion time of the last short job

    async def open(self, account: DpAccount) -> LearnerFacts:  # noqa: ARG002
        return self._me.learner

    async def do(self, job: Job) -> Any:
        answer, seconds = self._submit(job), self._seconds(job)
        before = max((due.at for due in self._long), default=0.0)
        due = Due(max(before, self._world.clock.now) + seconds)
        self._long[due] = None
        try:
            while due.at > self._world.clock.now:
                await self._world.clock.until(due.at)
        finally:
            del self._long[due]
        return answer()

    async def soon(self, job: Job, spent: Callable[[float], None] | None = None) -> Any:
        answer, seconds = self._submit(job), self._seconds(job)
        if seconds:
            self._soon = max(self._soon, self._world.clock.now) + seconds
            for due in self._long:
                due.at += seconds
            await self._world.clock.until(self._soon)
        if spent:
            spent(seconds)
        return answer()

    def _submit(self, job: Job) -> Result:
        return self._world.jobs.submit(self._me.id, self._me.learner, job)

    async def combine(self, rule: AggregateSettings, step: Average) -> Model:
        return self._world.averages.combine(rule, step)

    def _seconds(self, job: Job) -> float:
        world, me = self._world, self._me
        seconds = seconds_of(job, world.costs, me.learner)
        if not seconds:
            return 0.0
        me.jobs += 1
        slowness = world.conditions.slowness(me.id, world.clock.now)
        return world.costs.work(seconds, me.speed * slowness, world.chance(me.id, "job", me.jobs))
