"""The networks of a learner: how to build each one, which tensors are shared, and the workspaces that run it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.seeding import seeded
from pfl_node.learning.task import Task, other_network
from pfl_node.learning.workspace import Only, Workspace
from pfl_node.learning.workspace_pool import pool_for
from pfl_node.model import Layout, LocalState, Model, StateCell, Vector

Factory = Callable[[], nn.Module]


class LearnedNetwork:
    """One kind of module. Its frozen tensors are those of the build with seed 0, on every node."""

    def __init__(
        self,
        task: str,
        factory: Factory,
        device: torch.device,
        head: layouts.Head = None,
        private: layouts.Globs = (),
        shared: layouts.Globs = (),
    ) -> None:
        self._task, self._factory = task, factory
        module = self.build(0)
        placement = layouts.placement_of(module, head, private=private, shared=shared)
        self._private = 0, layouts.pack(module, placement.private)  # private part of the last seed
        self._dtypes = {name: t.dtype for name, t, _ in layouts.tensors_of(module)}
        self.first_private = self._private[1]
        self.pool = pool_for(module, placement, device)
        self.placement = self.pool.placement
        self.layout = self.pool.layout
        self._counters = layouts.counters_in(module, placement.private)

    def fresh(self, seed: int) -> Model:
        module = self.build(seed)
        if {name for name, _, _ in layouts.tensors_of(module)} != self.placement.names:
            raise TaskError("the model's factory builds models of different shapes")
        self._private = seed, layouts.pack(module, self.placement.private)
        vector = layouts.pack(module, self.layout)
        if self.placement.frozen:
            del module
            gc.collect()  # a large base must not wait for the collector: modules often have reference cycles
        return Model(self.layout, vector)

    def fresh_private(self, seed: int) -> Vector:
        if self._private[0] != seed and self.placement.private.size:
            self.fresh(seed)
        return self._private[1]

    def for_outputs(self, private: Vector | None) -> Vector | None:
        """The private part that determines a model's outputs."""
        if private is None or not self._counters.size:
            return private
        found = private.copy()
        found[self._counters] = 0
        return found

    def tensors(self, model: Model, private: Vector | None) -> dict[str, layouts.Array]:
        """Named arrays in the shapes and types of the module."""
        found = layouts.unpack(model, self._dtypes)
        if private is not None:
            found |= layouts.unpack(Model(self.placement.private, private), self._dtypes)
        return found

    def build(self, seed: int) -> nn.Module:
        with seeded(seed):
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise TaskError(f"task {self._task}: the model is of type {type(module).__name__}, not an nn.Module")
        return module


class Networks:
    """The task's own network and, if the policy has one, the student's. The private part of a local state has the
    private tensors of all of them."""

    def __init__(self, own: LearnedNetwork, student: LearnedNetwork | None = None) -> None:
        self.own = own
        self.main = student or own  # the network whose models are sent
        self._all = (own,) if student is None else (own, student)
        ends = np.cumsum([0, *(network.placement.private.size for network in self._all)]).tolist()
        self._spans = [slice(*pair) for pair in pairwise(ends)]
        self.private_size: int = ends[-1]
        self.private_digest = "/".join(network.placement.private.digest for network in self._all)

    def of(self, model: Model) -> LearnedNetwork:
        for network in (self.main, self.own):
            if model.layout is network.layout or model.layout == network.layout:
                return network
        if model.layout.part in ("core", "head"):
            raise LayoutMismatch(f"{model!r} is only a part: the whole model is needed here")
        raise LayoutMismatch(f"{model!r} does not fit: {self.main.layout.difference(model.layout.digest)}")

    def check_alike(self, model: Model, other: Model | None) -> None:
        """Raises LayoutMismatch if they are models of different networks."""
        if other is not None and self.of(other) is not self.of(model):
            raise LayoutMismatch(f"{other!r} belongs to another network than {model!r}")

    def start(self, seed: int) -> LocalState:
        if not self.private_size:
            return LocalState()
        parts = [network.fresh_private(seed) for network in self._all]
        return LocalState(np.concatenate(parts), self.private_digest)

    def private_of(self, network: LearnedNetwork, state: StateCell | None) -> Vector | None:
        """The private part of one network; None: it has none."""
        if not network.placement.private.size:
            return None
        if state is None or state.state.private is None:
            return network.first_private
        return state.state.private[self._span(network)]

    def result(
        self, model: Model, vector: Vector, private: Vector, state: StateCell | None, only: Only = None
    ) -> Model:
        """The model after a training of a part (None: both); its private part goes into the state. If that has
        diverged, so has the model."""
        network = self.of(model)
        _restore_other(only, vector, model.vector, network.layout)
        before = self.private_of(network, state)
        if before is not None:
            _restore_other(only, private, before, network.placement.private)
            self._keep(network, state, private)
            if not np.isfinite(private).all():
                vector.fill(np.nan)
        return Model(network.layout, vector)

    def _keep(self, network: LearnedNetwork, state: StateCell | None, private: Vector) -> None:
        if state is None or state.state.private is None:
            return
        whole = state.state.private.copy()
        whole[self._span(network)] = private
        state.state = replace(state.state, private=whole)

    def _span(self, network: LearnedNetwork) -> slice:
        return self._spans[self._all.index(network)]

    @contextmanager
    def loaded(self, model: Model, state: StateCell | None) -> Iterator[Workspace]:
        """A workspace with this model and the node's private part."""
        network = self.of(model)
        with network.pool.borrow() as space:
            space.load(model, self.private_of(network, state))
            yield space


def _restore_other(only: Only, after: Vector, before: Vector, layout: Layout) -> None:
    """Undo changes in the part that this training must not change."""
    if only == "core":
        after[layout.core_size :] = before[layout.core_size :]
    elif only == "head":
        after[: layout.core_size] = before[: layout.core_size]


def networks_of(task: Task, student: str | None, device: torch.device) -> Networks:
    own = LearnedNetwork(task.name, task.model, device, task.head, task.private, task.shared)
    if student is None:
        return Networks(own)
    return Networks(own, LearnedNetwork(task.name, other_network(task, student), device))
