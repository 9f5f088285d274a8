"""One training of a workspace's model: by the built-in loop, with privacy.dp, or by the task's own loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, TaskError, nearest
from pfl_node.learning import kept_values
from pfl_node.learning.dp_sgd import ALONE, DpSgd
from pfl_node.learning.fit_context import Fit, Work, restored_after
from pfl_node.learning.penalties import Term
from pfl_node.learning.samples import Batch, Samples, StackedSamples, call
from pfl_node.learning.seeding import seed_layers
from pfl_node.learning.task import Task
from pfl_node.learning.torch_compile import compile_errors, compiled
from pfl_node.learning.train_options import Options, plain_sgd
from pfl_node.learning.training_loop import Between, TrainingRun, batches, lr_factors
from pfl_node.learning.warn_once import warn_once
from pfl_node.learning.workspace import Only, Workspace
from pfl_node.model import Model, StateCell
from pfl_node.plugin import load
from pfl_node.protocol.privacy.pair_noise import PairSeeds
from pfl_node.settings.sections import PrivacySettings

ADAPTERS = {
    "lightning": "pfl_node.learning.lightning_loop:fit",
    "transformers": "pfl_node.learning.transformers_loop:fit",
}
KEPT, OWN = "optimizer", "fit"  # first words of the names in the local state: kept optimizers, a task's own loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The arguments of one training."""

    options: Options
    only: Only
    seed: int
    anchor: Model
    round: int
    state: StateCell | None
    between: Between
    correction: Model | None = None  # added to every gradient
    penalty: Term | None = None  # added to the loss
    partners: tuple[PairSeeds, int] = ALONE  # seeds of the pairs, usual number of neighbours
    plain: bool = False
    slot: int = 0

    def prefix(self, word: str) -> str:
        """Of the names of values that belong to this training's slot."""
        return f"{word}.{self.slot}/" if self.slot else f"{word}/"  # checkpoints of version 0.1 have no numbers


class Fitting:
    """How one learner trains."""

    def __init__(
        self, task: Task, train: Samples, loss: Callable[[Any, Any], Tensor], private: DpSgd | None
    ) -> None:
        self._name, self._train, self._loss, self._private = task.name, train, loss, private
        self._own = loop_of(task)

    def run(self, space: Workspace, job: Training) -> None:
        seed_layers(job.seed, space.flat.device)
        if self._own is not None:
            self._run_own(self._own, space, job)
            return
        options, only, state = plain_sgd(job.options) if job.plain else job.options, job.only, job.state
        lone = min(options.batch, self._train.n) == 1
        rate = lr_factors(options, job.round, self._train.n)
        given: dict[str, Any] = {"anchor": job.anchor, "correction": job.correction, "lr_factor": rate}
        descent = TrainingRun(space, options, only=only, lone_samples=lone, **given)
        kept = f"{job.prefix(KEPT)}{only or 'all'}/"
        if options.keep and state:
            descent.load(kept_values.read(state.state, kept))
        if self._private:
            space.prepare(only)
            data, loss, partners = self._train, self._loss, job.partners
            self._private.run(descent, space, options, data, job.seed, loss, job.between, partners)
        else:
            self._descend(descent, space, job)
        if options.keep and state:
            state.state = kept_values.write(state.state, kept, descent.state())

    def _descend(self, descent: TrainingRun, space: Workspace, job: Training) -> None:
        compiles = job.options.compile and job.penalty is None  # a penalty reads intermediate values of the module
        module = compiled(space) if compiles else space.module
        where = self._train.device if isinstance(self._train, StackedSamples) else None
        chosen = batches(self._train.n, job.options, job.seed, single=not space.batch_norms, device=where)
        read = self._train.batches(chosen, job.seed)

        def loss(batch: Batch) -> Tensor:
            output = call(module, batch.x)
            found = self._loss(output, batch.target)
            return found if job.penalty is None else found + job.penalty(batch, output)

        with compile_errors(compiles):
            descent.run(read, loss, job.between)

    def _run_own(self, fit: Fit, space: Workspace, job: Training) -> None:
        if job.plain:
            raise TaskError(
                f"task {self._name}: the policy needs steps of plain SGD, and the task has a training loop of its "
                "own: leave out `fit`, or use another policy"
            )
        kept = kept_values.read(job.state.state, job.prefix(OWN)) if job.state else {}
        given: dict[str, Any] = {"only": job.only, "seed": job.seed, "round": job.round, "anchor": job.anchor}
        given |= {"correction": job.correction, "penalty": job.penalty}
        work = Work(space, self._train, job.options, **given, state=kept, loss=self._loss, between=job.between)
        space.prepare(job.only)
        with restored_after(space.module), torch.enable_grad(), work.corrected_steps():
            fit(space.module, work)
        work.check(self._name)
        if job.state:
            job.state.state = kept_values.write(job.state.state, job.prefix(OWN), work.state)


def loop_of(task: Task) -> Fit | None:
    """The task's own loop; None: the built-in one."""
    if task.fit is None or callable(task.fit):
        return task.fit
    if task.fit not in ADAPTERS:
        known = nearest(str(task.fit), ADAPTERS)
        raise TaskError(f"task {task.name}: fit = {task.fit!r} is neither a function nor an adapter; {known}")
    found: Fit = load("fit", ADAPTERS[task.fit], TaskError)
    return found


def check_loop(task: Task, module: nn.Module, privacy: PrivacySettings | None, student: str | None) -> None:
    private = privacy is not None and privacy.dp
    if private and student is not None:
        raise ConfigError("privacy.dp trains one network: leave out policy.student_model")
    if private and task.fit is not None:
        raise ConfigError("privacy.dp cannot protect a training loop of the task: leave out `fit` or privacy.dp")
    if callable(task.fit):
        _check_arguments(task.name, task.fit)
    if task.fit is None and callable(getattr(module, "training_step", None)):
        warn_once(
            "the model has a training_step, which the built-in loop does not call: return fit = 'lightning'",
            task=task.name,
        )


def _check_arguments(task: str, fit: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(fit)
    except (TypeError, ValueError):  # a builtin
        return
    try:
        signature.bind("model", "work")
    except TypeError as error:
        raise TaskError(f"task {task}: fit{signature} cannot be called as fit(model, work): {error}") from None
