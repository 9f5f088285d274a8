"""Gradients, corrections and lookahead: what policies beyond averaging ask of the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node.errors import ConfigError, LayoutMismatch, TaskError
from pfl_node.learning.fit_context import Work
from pfl_node.learning.learner import Learner
from pfl_node.model import Model, StateCell
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import blobs, learner, plain, task, with_batch_norm, with_dropout
from tests.unit.learning.test_own_loop import sgd

pytestmark = pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns


def vector_like(model: Model, seed: int = 3, scale: float = 0.05) -> Model:
    numbers = np.random.default_rng(seed).normal(size=model.layout.size) * scale
    return Model(model.layout, numbers.astype(np.float32))


def by_hand(me: Learner, model: Model) -> np.ndarray[Any, Any]:
    """The full gradient by autograd, in the order of the layout."""
    module, (x, y) = me.module(), blobs()
    module.load_state_dict({name: torch.tensor(t) for name, t in me.tensors(model).items()})
    nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in module.named_parameters()}
    return np.concatenate([grads[e.name].flatten().numpy() for e in model.layout.entries])  # type: ignore[union-attr]


# -- gradients -------------------------------------------------------------------------------------------------


def test_the_gradient_of_all_samples_is_that_of_autograd() -> None:
    me = learner(batch=7)  # read in batches of unequal size
    model = me.fresh(0)
    found = me.gradient(model, seed=1, samples=10**6)
    assert found.layout == model.layout
    np.testing.assert_allclose(found.vector, by_hand(me, model), atol=1e-6)


def test_one_step_of_sgd_is_the_gradient_of_its_batch_times_the_learning_rate() -> None:
    me = learner(batch=40, lr=0.1)  # one batch has all the samples
    model = me.fresh(0)
    step = me.train(model, seed=9, steps=1).vector
    np.testing.assert_allclose(model.vector - 0.1 * me.gradient(model, seed=1).vector, step, atol=1e-6)


@pytest.mark.parametrize("make", [plain, with_dropout, with_batch_norm])
def test_the_same_number_is_the_same_batch_and_another_one_is_not(make: Any) -> None:
    me, again = learner(make), learner(make)
    model, other = me.fresh(0), me.fresh(1)
    first = me.gradient(model, seed=1, batch=4)
    me.gradient(other, seed=1, batch=4)
    me.train(other, seed=2)
    assert again.gradient(model, seed=1, batch=4) == first == me.gradient(model, seed=1, batch=4)
    assert me.gradient(model, seed=1, batch=5) != first
    assert me.gradient(model, seed=2, batch=4) != first


def test_the_gradient_of_buffers_is_zero_and_a_gradient_changes_no_model() -> None:
    me = learner(with_batch_norm)
    model = me.fresh(0)
    before = model.vector.copy()
    found = me.gradient(model, seed=0)
    for entry, span in model.layout.spans():
        assert found.vector[span].any() == entry.trained, entry.name
    assert np.array_equal(model.vector, before)


def test_a_batch_of_one_sample_and_a_rest_of_one_do_not_disturb_batch_normalisation() -> None:
    me = learner(with_batch_norm, blobs(9))
    assert me.gradient(me.fresh(0), seed=0, samples=1).is_finite()
    assert me.gradient(me.fresh(0), seed=0, samples=9).is_finite()  # batches of 8 and 1


def test_a_gradient_of_several_samples_in_batches_of_one_covers_them() -> None:
    me = learner(with_batch_norm, blobs(9), batch=1)
    model = me.fresh(0)
    alone, all_of_them = (me.gradient(model, seed=0, samples=n).vector for n in (1, 9))
    assert alone.any()
    assert all_of_them.any()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_gradient_in_low_precision_is_close_to_the_exact_one(precision: Any) -> None:
    me, low = learner(), learner(precision=precision)
    model = me.fresh(0)
    exact = me.gradient(model, seed=1).vector
    np.testing.assert_allclose(low.gradient(model, seed=1).vector, exact, atol=0.05 * np.abs(exact).max())


def test_a_gradient_is_refused_with_privacy() -> None:
    pytest.importorskip("opacus")
    me = Learner(task(), TrainSettings(), "cpu", PrivacySettings(dp=True))
    with pytest.raises(ConfigError, match="adds no noise to the gradients"):
        me.gradient(me.fresh(0), seed=0)


# -- corrections -----------------------------------------------------------------------------------------------


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "AdamW"},
    "rmsprop": {"optimizer": "RMSprop"},
    "lbfgs": {"optimizer": "LBFGS"},
    "accumulate": {"accumulate": 2},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
}


def shifted_loss(vector: Model) -> Any:
    """Cross-entropy plus <vector, parameters>, whose gradient is the correction."""

    def fit(model: nn.Module, work: Work) -> None:
        flat = {entry.name: torch.tensor(vector.vector[span]) for entry, span in vector.layout.spans()}
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
        for batch in work.batches():
            optimizer.zero_grad()
            loss = work.loss(model(batch.x), batch.y)
            loss = loss + sum((p.flatten() * flat[name]).sum() for name, p in model.named_parameters())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return fit


def test_a_correction_has_the_effect_of_a_linear_term_in_the_loss() -> None:
    me = learner(lr=0.1)
    model = me.fresh(0)
    vector = vector_like(model)
    linear = learner(lr=0.1, task_options={"fit": shifted_loss(vector)})
    expected = linear.train(model, seed=1, state=StateCell(linear.start(0))).vector
    np.testing.assert_allclose(me.train(model, seed=1, correction=vector).vector, expected, atol=1e-5)


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_correction_reaches_every_optimizer(settings: dict[str, Any]) -> None:
    """With the opposite of the gradient, the first step of SGD goes nowhere; others see a gradient of zero too."""
    me = learner(batch=8, lr=0.05, **settings)
    model = me.fresh(0)
    zero = Model(model.layout, np.zeros_like(model.vector))
    assert me.train(model, seed=1, correction=zero) == me.train(model, seed=1)
    corrected = me.train(model, seed=1, correction=vector_like(model))
    assert corrected.is_finite()
    assert corrected != me.train(model, seed=1)


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adam"}, {"accumulate": 2}], ids=["sgd", "adam", "accumulate"]
)
def test_a_correction_that_cancels_the_gradient_stops_the_first_step(settings: dict[str, Any]) -> None:
    me = learner(batch=40, **settings)
    model = me.fresh(0)
    gradient = me.gradient(model, seed=1)
    opposite = Model(model.layout, -gradient.vector)
    stays = me.train(model, seed=1, steps=1, correction=opposite).vector
    room = 0.06 if settings.get("optimizer") == "adam" else 1e-6  # Adam divides a rounding error by itself
    np.testing.assert_allclose(stays, model.vector, atol=room)


@pytest.mark.parametrize("only", ["core", "head"])
def test_a_correction_leaves_the_part_alone_that_is_not_trained(only: Any) -> None:
    me = learner()
    model = me.fresh(0)
    found = me.train(model, seed=1, only=only, correction=vector_like(model, scale=10.0))
    assert (found.core == model.core) is (only == "head")
    assert (found.head == model.head) is (only == "core")


def test_a_correction_adds_to_the_proximal_term_and_is_clipped_with_the_gradient() -> None:
    me = learner(batch=40, lr=0.1)
    model, anchor = me.fresh(0), me.fresh(5)
    vector, gradient = vector_like(model), me.gradient(model, seed=1)
    found = me.train(model, seed=1, steps=1, correction=vector, prox=0.5, anchor=anchor)
    full = gradient.vector + 0.5 * (model.vector - anchor.vector) + vector.vector
    np.testing.assert_allclose(found.vector, model.vector - 0.1 * full, atol=1e-6)
    clipped = learner(batch=40, lr=1.0, clip=0.1)
    moved = clipped.train(model, seed=1, steps=1, correction=vector_like(model, scale=50.0)).vector - model.vector
    assert np.linalg.norm(moved) == pytest.approx(0.1, rel=1e-3)


def test_buffers_are_not_corrected() -> None:
    me = learner(with_batch_norm)
    model = me.fresh(0)
    plain_run, corrected = (
        me.train(model, seed=1, steps=1, correction=c) for c in (None, vector_like(model, scale=10.0))
    )
    for entry, span in model.layout.spans():
        same = np.array_equal(plain_run.vector[span], corrected.vector[span])
        assert same is not entry.trained, entry.name


def test_with_privacy_the_correction_comes_after_the_noise() -> None:
    """It does not depend on my samples, so it costs no budget: the difference of two trainings is exact."""
    pytest.importorskip("opacus")
    settings, privacy = TrainSettings(lr=0.1, steps=1), PrivacySettings(dp=True, dp_noise=1.0)
    one, other = (Learner(task(), settings, "cpu", privacy) for _ in range(2))
    model = one.fresh(0)
    vector = vector_like(model)
    difference = other.train(model, seed=1, correction=vector).vector - one.train(model, seed=1).vector
    np.testing.assert_allclose(difference, -0.1 * vector.vector, atol=1e-6)  # the noise is the same
    assert one.account.epsilon == other.account.epsilon


def test_a_correction_of_another_layout_is_refused() -> None:
    me, other = learner(), learner(with_batch_norm)
    with pytest.raises(LayoutMismatch):
        me.train(me.fresh(0), seed=1, correction=other.fresh(0))
    with pytest.raises(LayoutMismatch, match=r"Model\(core, .* is only a part: the whole model is needed here"):
        me.train(me.fresh(0), seed=1, correction=me.fresh(0).core)


# -- plain SGD -------------------------------------------------------------------------------------------------

OTHER_STEPS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "kept momentum": {"momentum": 0.9, "keep_optimizer": True},
    "nesterov": {"momentum": 0.9, "optimizer_options": {"nesterov": True}},
    "adam": {"optimizer": "adam", "keep_optimizer": True},
    "adamw": {"optimizer": "AdamW", "optimizer_options": {"weight_decay": 0.5}},
    "lbfgs": {"optimizer": "LBFGS"},
    "accumulate": {"accumulate": 3},
    "clip": {"clip": 0.01},
    "schedule": {"schedule": "step", "schedule_every": 1},
    "warmup": {"warmup": 9},
}


@pytest.mark.parametrize("settings", OTHER_STEPS.values(), ids=OTHER_STEPS)
def test_plain_steps_are_those_of_plain_sgd_whatever_the_optimizer_of_the_run(settings: dict[str, Any]) -> None:
    me, reference = learner(**settings), learner()
    model = me.fresh(0)
    cell = StateCell(me.start(0)) if me.stateful else None
    me.train(model, seed=7, state=cell)  # momentum of another training
    options: dict[str, Any] = {"seed": 1, "steps": 4, "lr": 0.1, "correction": vector_like(model), "round": 2}
    expected = reference.train(model, **options)
    assert me.train(model, **options, plain=True, state=cell) == expected
    assert me.train(model, **options) != expected
    assert reference.train(model, **options, plain=True) == expected


def test_plain_steps_include_the_weight_decay_which_is_part_of_the_objective() -> None:
    decays = learner(weight_decay=0.1)
    model = decays.fresh(0)
    expected = decays.train(model, seed=1, lr=0.1)
    assert decays.train(model, seed=1, lr=0.1, plain=True) == expected
    assert expected != learner().train(model, seed=1, lr=0.1)
    assert learner(optimizer="adam", weight_decay=0.1).train(model, seed=1, lr=0.1, plain=True) == expected


@pytest.mark.parametrize("settings", [{}, *OTHER_STEPS.values()], ids=["sgd", *OTHER_STEPS])
def test_plain_steps_yield_the_mean_of_their_gradients(settings: dict[str, Any]) -> None:
    """SCAFFOLD, line 12 (ii): (x - y_i) / (K eta_l) is the mean of the corrected gradients."""
    me = learner(batch=40, **settings)  # one batch has all the samples
    x = me.fresh(0)
    correction, steps, eta_l = vector_like(x), 3, 0.1
    y, total = x, np.zeros_like(x.vector)
    for _ in range(steps):
        corrected = me.gradient(y, seed=1).plus(correction)
        y, total = y.plus(corrected, -eta_l), total + corrected.vector
    cell = StateCell(me.start(0)) if me.stateful else None
    found = me.train(x, seed=1, steps=steps, lr=eta_l, correction=correction, plain=True, state=cell)
    np.testing.assert_allclose(x.plus(found, -1).vector / (steps * eta_l), total / steps, atol=1e-5)


def test_a_task_with_its_own_loop_is_refused_because_its_steps_may_be_others() -> None:
    own = learner(task_options={"fit": sgd})
    with pytest.raises(TaskError, match=r"task blobs: the policy needs steps of plain SGD, .* leave out `fit`"):
        own.train(own.fresh(0), seed=1, plain=True, state=StateCell(own.start(0)))


# -- corrections in a task's own loop ----------------------------------------------------------------------------


@pytest.mark.parametrize("only", [None, "head"])
def test_a_loop_with_a_torch_optimizer_needs_no_line_for_a_correction(only: Any) -> None:
    own, built_in = learner(task_options={"fit": sgd}, lr=0.1), learner(lr=0.1)
    model = own.fresh(0)
    options: dict[str, Any] = {"seed": 3, "only": only, "correction": vector_like(model)}
    found = own.train(model, state=StateCell(own.start(0)), **options)
    np.testing.assert_allclose(found.vector, built_in.train(model, **options).vector, atol=1e-5)
    again = own.train(model, seed=3, only=only, state=StateCell(own.start(0)))  # no hook stays behind
    np.testing.assert_allclose(again.vector, built_in.train(model, seed=3, only=only).vector, atol=1e-5)


def accumulating(model: nn.Module, work: Work) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    optimizer.zero_grad()
    for number, batch in enumerate(work.batches()):
        (work.loss(model(batch.x), batch.y) / 2).backward()  # type: ignore[no-untyped-call]
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def test_a_loop_that_accumulates_gradients_gets_the_correction_once_per_step() -> None:
    own, built_in = learner(task_options={"fit": accumulating}), learner(accumulate=2)
    model = own.fresh(0)
    options: dict[str, Any] = {"seed": 3, "steps": 4, "correction": vector_like(model)}
    found = own.train(model, state=StateCell(own.start(0)), **options)
    np.testing.assert_allclose(found.vector, built_in.train(model, **options).vector, atol=1e-5)


def without_optimizer(model: nn.Module, work: Work, *, corrects: bool) -> None:
    correction = work.correction if corrects else {}
    for batch in work.batches():
        model.zero_grad()
        work.loss(model(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, param in model.named_parameters():
                assert param.grad is not None
                param.sub_(work.lr * (param.grad + correction.get(name, torch.zeros(()))))


def test_a_loop_without_a_torch_optimizer_must_add_the_correction_itself() -> None:
    adds = learner(task_options={"fit": lambda model, work: without_optimizer(model, work, corrects=True)}, lr=0.1)
    model = adds.fresh(0)
    options: dict[str, Any] = {"seed": 3, "correction": vector_like(model)}
    found = adds.train(model, state=StateCell(adds.start(0)), **options)
    np.testing.assert_allclose(found.vector, learner(lr=0.1).train(model, **options).vector, atol=1e-5)
    leaves = learner(task_options={"fit": lambda model, work: without_optimizer(model, work, corrects=False)})
    with pytest.raises(TaskError, match=r"add work\.correction to the gradients"):
        leaves.train(model, state=StateCell(leaves.start(0)), **options)


def test_a_lightning_loop_applies_a_correction() -> None:
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = plain()

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lit = learner(Lit, task_options={"fit": "lightning"})
    model = lit.fresh(0)
    vector = vector_like(model)
    with_it, without = (
        lit.train(model, seed=3, steps=1, correction=c, state=StateCell(lit.start(0))) for c in (vector, None)
    )
    np.testing.assert_allclose(with_it.vector - without.vector, -0.1 * vector.vector, atol=1e-6)


# -- lookahead -------------------------------------------------------------------------------------------------


def test_a_training_ahead_is_a_training_from_the_point_beyond() -> None:
    """x + beta (x - past), Li et al. 2024 (OledFL)."""
    me = learner()
    model, past = me.fresh(0), me.fresh(1)
    beyond = Model(model.layout, model.vector + np.float32(0.5) * (model.vector - past.vector))
    found = me.train(model, seed=1, past=past, lookahead=0.5)
    np.testing.assert_allclose(found.vector, me.train(beyond, seed=1).vector, atol=1e-6)
    assert me.train(model, seed=1, past=model, lookahead=0.5) == me.train(model, seed=1)


def test_a_training_ahead_leaves_statistics_and_the_other_part_where_they_are() -> None:
    me = learner(with_batch_norm)
    model, past = me.fresh(0), vector_like(me.fresh(0), scale=5.0)
    still = me.train(model, seed=1, steps=1, only="head", past=past, lookahead=0.9)
    assert still.core == model.core
    whole = me.train(model, seed=1, steps=1, past=past, lookahead=0.9)
    tensors = me.tensors(whole)
    assert all((t >= 0).all() for name, t in tensors.items() if name.endswith("running_var"))


def test_a_private_node_without_budget_keeps_the_average_itself() -> None:
    pytest.importorskip("opacus")
    me = Learner(task(), TrainSettings(), "cpu", PrivacySettings(dp=True, dp_noise=1.0, dp_epsilon=1e-3))
    model = me.fresh(0)
    assert me.train(model, seed=1, past=me.fresh(1), lookahead=0.5) is model
