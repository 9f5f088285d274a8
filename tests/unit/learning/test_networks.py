"""What travels and what stays: frozen parameters, private tensors and buffers of a learner."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data
from pfl_node.learning.workspace_pool import _frozen
from pfl_node.model import LocalState, StateCell
from tests.unit.learning.nets import CLASSES, blobs, learner, with_batch_norm


class Scaler(nn.Module):
    """A site's own statistics, as buffers."""

    mean: Tensor

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), mean))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


def frozen_base(seed: int = 0) -> nn.Module:
    """A base that does not depend on the seed of the build, and a trained layer."""
    base = nn.Sequential(nn.Flatten(), nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU())
    chance = torch.Generator().manual_seed(seed)
    for param in base.parameters():
        param.data.normal_(generator=chance)
        param.requires_grad = False
    return nn.Sequential(base, nn.Linear(32, CLASSES))


def scaled(mean: float) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Scaler(mean), nn.Linear(4, CLASSES))


def trained(me: Learner, rounds: int = 3) -> tuple[Any, StateCell]:
    cell, model = StateCell(me.start(0)), me.fresh(0)
    for n in range(rounds):
        model = me.train(model, seed=n, state=cell)
    return model, cell


def test_only_the_trained_layer_of_a_frozen_model_travels() -> None:
    me = learner(frozen_base, epochs=5, lr=0.1)
    assert me.layout.size == 33 * CLASSES
    assert not me.stateful
    model, _ = trained(me)
    assert me.score([model])[0].accuracy > me.score([me.fresh(0)])[0].accuracy


def test_the_statistics_of_a_frozen_batch_norm_do_not_change() -> None:
    me = learner(frozen_base)
    with me._pool.borrow() as space:
        space.load(me.fresh(0))
        space.prepare(None)
        space.module.train()  # as a task's own training loop may do
        space.module(torch.randn(8, 4))
        norm = space.module[0][2]  # type: ignore[index]
        assert not norm.running_mean.any()
        assert space.batch_norms == []


def test_a_frozen_base_exists_once_in_a_process() -> None:
    class Marked(nn.Sequential):
        """Never alike, because of an attribute that cannot be compared."""

        def __init__(self) -> None:
            super().__init__(frozen_base(), nn.Linear(CLASSES, CLASSES))
            self.mark = object()

    nodes = [learner(Marked) for _ in range(3)]
    assert len({id(n._pool) for n in nodes}) == 3
    places = set()
    for node in nodes:
        with node._pool.borrow() as first, node._pool.borrow() as second:
            modules = [node._pool.module, first.module, second.module]
            places |= {m.get_parameter("0.0.1.weight").data_ptr() for m in modules}
            assert len({m.get_parameter("1.weight").data_ptr() for m in modules}) == 3
    assert len(places) == 1
    digest = nodes[0].layout.frozen
    assert digest in {key[0] for key in _frozen}
    del nodes, node, first, second, modules
    gc.collect()
    assert digest not in {key[0] for key in _frozen}


def test_a_frozen_module_that_the_task_gives_directly_is_not_copied() -> None:
    from pfl_node.learning.tasks import as_task

    module = frozen_base()
    made = as_task({"model": module, "train": blobs()}, "mine").model()
    assert made[0][1].weight is module[0][1].weight  # type: ignore[index]
    assert made[1].weight is not module[1].weight  # type: ignore[index]


def test_a_model_on_another_base_is_refused_by_name() -> None:
    mine, other = learner(frozen_base), learner(lambda: frozen_base(seed=1))
    with pytest.raises(LayoutMismatch, match="frozen parameters differ: another base model"):
        mine.score([other.fresh(0)])


def test_a_frozen_base_in_half_precision_keeps_its_type() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(4, 8).to(torch.bfloat16).requires_grad_(False)
            self.out = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.base(x.flatten(1).bfloat16()).float())  # type: ignore[no-any-return]

    me = learner(Half)
    with me._pool.borrow() as space:
        assert space.module.get_parameter("base.weight").dtype == torch.bfloat16
    assert me.score([me.train(me.fresh(0), seed=0)])[0].samples == 40


def test_sites_with_their_own_scaler_share_a_workspace_and_keep_their_statistics() -> None:
    ann, bob = learner(lambda: scaled(0.0)), learner(lambda: scaled(50.0), Data(blobs().x + 50, blobs().y))
    assert ann._pool is bob._pool
    assert ann.layout.size == 5 * CLASSES
    model, kept = ann.fresh(0), [StateCell(ann.start(0)), StateCell(bob.start(0))]
    scores = [me.score([model], state=cell)[0] for me, cell in zip((ann, bob), kept, strict=True)]
    assert scores[0] == scores[1]
    assert (bob.tensors(model, kept[1].state)["1.mean"] == 50).all()


def test_fedbn_keeps_the_statistics_and_weights_of_its_normalisation() -> None:
    me = learner(with_batch_norm, task_options={"private": ["2", "5"]}, epochs=3, lr=0.1)
    assert me.stateful
    assert not any(e.name.startswith(("2.", "5.")) for e in me.layout.entries)
    model, cell = trained(me)
    first = me.start(0)
    assert first.private is not None
    assert cell.state.private is not None
    assert not np.array_equal(first.private, cell.state.private)
    with_own, with_first = (me.score([model], state=StateCell(s))[0] for s in (cell.state, first))
    assert with_own.loss < with_first.loss
    assert set(me.tensors(model, cell.state)) == set(with_batch_norm().state_dict())


def test_training_one_part_leaves_the_private_tensors_of_the_other_alone() -> None:
    me = learner(with_batch_norm, task_options={"private": ["2", "5"], "head": ["4", "5"]})
    cell = StateCell(me.start(0))
    before, model = cell.state, me.fresh(0)
    me.train(model, seed=0, only="head", state=cell)
    old, new = (me.tensors(model, state) for state in (before, cell.state))
    assert all(np.array_equal(old[name], new[name]) for name in old if name.startswith("2."))
    assert not np.array_equal(old["5.running_mean"], new["5.running_mean"])


def test_the_proximal_term_does_not_pull_private_parameters() -> None:
    me = learner(with_batch_norm, task_options={"private": ["2"]})
    cells = [StateCell(me.start(0)) for _ in range(2)]
    model = me.fresh(0)
    me.train(model, seed=0, prox=1e3, lr=1e-4, state=cells[0])
    me.train(model, seed=0, lr=1e-4, state=cells[1])
    a, b = (cell.state.private for cell in cells)
    assert a is not None
    assert b is not None
    np.testing.assert_allclose(a, b, rtol=0.05, atol=0.05)


def test_a_private_part_that_diverges_takes_the_model_with_it() -> None:
    class Broken(nn.Module):
        total: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, CLASSES)
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.total = self.total + float("inf")
            return self.out(x.flatten(1))  # type: ignore[no-any-return]

    me = learner(Broken)
    model, _ = trained(me, 1)
    assert not model.is_finite()


def test_the_private_part_starts_from_the_seed_of_the_node() -> None:
    me = learner(with_batch_norm, task_options={"private": ["1"]})
    a, b, again = (me.start(seed).private for seed in (1, 2, 1))
    assert a is not None
    assert b is not None
    assert not np.array_equal(a, b)
    assert np.array_equal(a, again)  # type: ignore[arg-type]


def test_a_student_has_a_private_part_of_its_own() -> None:
    from pfl_node.learning.task import Task
    from pfl_node.settings import TrainSettings

    data, aux = blobs(), blobs(30, seed=9).x
    networks = {"small": lambda: scaled(3.0)}
    task = Task("two", lambda: scaled(1.0), data, val=data, auxiliary=aux, networks=networks)
    me = Learner(task, TrainSettings(), "cpu", student="small")
    state = me.start(0)
    assert state.private is not None
    assert state.private.tolist() == [1.0] * 4 + [3.0] * 4
    cell = StateCell(state)
    teacher = me.predict(me.fresh(0, local=True), seed=0, state=cell)
    me.distill(me.fresh(0), seed=0, teacher=teacher, epochs=1, state=cell)
    assert cell.state.private is not None


def test_a_factory_that_changes_its_mind_is_found() -> None:
    made = iter([with_batch_norm(), nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))])
    me = learner(lambda: next(made))
    with pytest.raises(TaskError, match="different shapes"):
        me.fresh(1)


def test_an_evaluation_of_equal_models_with_other_private_parts_is_not_taken_from_the_cache() -> None:
    me = learner(lambda: scaled(0.0))
    model = me.fresh(0)
    state = me.start(0)
    moved = LocalState(np.full(4, 9.0, np.float32), state.layout)
    a, b = (me.score([model], split="test", state=StateCell(s))[0] for s in (state, moved))
    assert a.loss != b.loss


def private_node(model: Any, **options: Any) -> Learner:
    """Trains with differential privacy."""
    from pfl_node.learning.task import Task
    from pfl_node.settings import TrainSettings
    from pfl_node.settings.sections import PrivacySettings

    task = Task("blobs", model, blobs(), val=blobs(), **options)
    return Learner(task, TrainSettings(steps=2), "cpu", PrivacySettings(dp=True, dp_noise=1.0))


def test_differential_privacy_covers_private_parameters() -> None:
    def norm() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, CLASSES))

    me = private_node(norm, private="2")
    cell = StateCell(me.start(0))
    me.train(me.fresh(0), seed=0, state=cell)
    exact = learner(norm, task_options={"private": "2"}, steps=2)
    other = StateCell(exact.start(0))
    exact.train(exact.fresh(0), seed=0, state=other)
    assert me.account.epsilon > 0
    a, b, first = cell.state.private, other.state.private, me.start(0).private
    assert a is not None
    assert not np.array_equal(a, first)  # type: ignore[arg-type]
    assert not np.allclose(a, b)  # type: ignore[arg-type]


def test_differential_privacy_refuses_private_statistics_that_change() -> None:
    class Counts(nn.Module):
        total: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, CLASSES)
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.total += x.detach().sum(0)
            return self.out(x)  # type: ignore[no-any-return]

    me = private_node(Counts)
    with pytest.raises(TaskError, match="adds no noise to total"):
        me.train(me.fresh(0), seed=0, state=StateCell(me.start(0)))


def test_differential_privacy_accepts_a_frozen_batch_norm() -> None:
    me = private_node(frozen_base)
    assert me.train(me.fresh(0), seed=0) != me.fresh(0)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_reload_keeps_private_tensors_and_takes_non_persistent_ones_from_the_task(persistent: bool) -> None:
    """A scaler in a buffer belongs to the weights; a non-persistent one follows the data."""

    def at(mean: float) -> Learner:
        def build() -> nn.Module:
            module = scaled(mean)
            if not persistent:
                module.get_submodule("1").register_buffer("mean", torch.full((4,), mean), persistent=False)
            return module

        return learner(build, blobs())

    me = at(1.0)
    cell, model = StateCell(me.start(0)), me.fresh(0)
    (before,) = me.score([model], state=cell)
    me.source = lambda: at(9.0)
    me.reload()
    (after,) = me.score([model], state=cell)
    assert (before == after) == persistent
