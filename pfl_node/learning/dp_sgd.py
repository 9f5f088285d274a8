"""DP-SGD: clip every sample's gradient and add noise to the sum (Abadi et al. 2016, Algorithm 1).

Opacus provides per-sample gradients and the accountant. Batches are Poisson samples: every sample is included
independently with the same probability, so batches differ in size and may be empty.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, StoreError, TaskError
from pfl_node.learning.auxiliary import IGNORED
from pfl_node.learning.layout import is_frozen
from pfl_node.learning.samples import Batch, Samples, call, each_leaf, leaves, take
from pfl_node.learning.seeding import noise_of
from pfl_node.learning.task import Task
from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import Between, TrainingRun
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Model, Vector
from pfl_node.protocol.privacy.dp_account import DpAccount, DpStep
from pfl_node.protocol.privacy.pair_noise import PairSeeds, own_variance
from pfl_node.seeds import seed_from
from pfl_node.settings.sections import PrivacySettings

if TYPE_CHECKING:
    from opacus import GradSampleModule

log = structlog.get_logger(__name__)

AT_ONCE = 1 << 26  # numbers of per-sample gradients in memory at a time
Loss = Callable[[Any, Any], Tensor]  # called with (output, y); the mean over a batch
LossAt = Callable[[Tensor], Iterator[Tensor]]  # the mean losses of pieces of an index


def private_training(
    task: Task, module: nn.Module, settings: PrivacySettings | None, account: DpAccount
) -> DpSgd | None:
    """None: privacy.dp is off. Raises if Opacus is missing or the model mixes samples."""
    if settings is None or not settings.dp:
        return None
    try:
        from opacus.validators import ModuleValidator
    except ImportError as error:
        raise ConfigError("privacy.dp needs Opacus: pip install 'pfl-node[dp]'") from error
    checks = ModuleValidator.VALIDATORS
    layers = [m for m in module.modules() if not is_frozen(m)]  # a frozen layer stays in evaluation mode
    pairs = [(m, check) for m in layers for kind, check in checks.items() if isinstance(m, kind)]
    if kinds := sorted({type(m).__name__ for m, check in pairs if check(m)}):
        raise TaskError(
            f"task {task.name}: privacy.dp cannot train {', '.join(kinds)}, which mixes samples or hides "
            "gradients: use GroupNorm or LayerNorm instead of batch normalisation, opacus.layers instead of "
            "recurrent ones"
        )
    if settings.dp_correlated and task.private:
        raise TaskError(
            f"task {task.name}: private tensors are not exchanged, so privacy.dp_correlated adds noise to them "
            "that never cancels: leave out `private` or privacy.dp_correlated"
        )
    return DpSgd(settings, account, own_loss=task.loss is not None)


class Partners(NamedTuple):
    """The neighbours of the exchange that follows, if their noise cancels mine (`privacy.dp_correlated`)."""

    seeds: PairSeeds
    degree: int  # the usual number of neighbours in the run


ALONE = Partners((), 0)


class StepNoise:
    """The noise that is added to the sum of a step's clipped gradients. `fill` is the expected size of a batch as
    a fraction of `train.batch`: the noise of a pair cancels in the mean gradients, which a node with fewer samples
    divides by less."""

    def __init__(
        self, settings: PrivacySettings, partners: Partners, fill: float, chance: np.random.Generator
    ) -> None:
        self._own, self._scale = chance, settings.dp_clip * settings.dp_noise
        self._pairs = [(sign, noise_of("pair", seed)) for sign, seed in partners.seeds]
        if not self._pairs:
            return
        pair = settings.dp_pair_noise
        own = own_variance(pair, len(self._pairs), settings.dp_colluders, partners.degree, 1 / fill)
        self._pair_scale = self._scale * pair * fill
        self._scale *= sqrt(own) * fill

    def like(self, param: Tensor) -> Tensor:
        found = _normal(self._own, param) * self._scale
        for sign, shared in self._pairs:
            found += _normal(shared, param) * (sign * self._pair_scale)
        return found


def _normal(chance: np.random.Generator, like: Tensor) -> Tensor:
    return torch.as_tensor(chance.standard_normal(like.shape)).to(like)


class DpSgd:
    """The private training of one learner."""

    def __init__(self, settings: PrivacySettings, account: DpAccount, *, own_loss: bool = False) -> None:
        from pfl_node.learning.accountant import epsilon

        self._settings = settings
        self._account = account
        self._own_loss = own_loss  # the loss is the task's, not the default
        self._epsilon = epsilon
        self._compared = False  # whether the gradients were compared with those of torch, once per learner
        account.epsilon = epsilon(account.steps, settings.dp_delta)

    def may(self, options: Options, samples: int) -> bool:
        """Whether the training is within the privacy budget; if so, record its cost before it begins."""
        account, limit = self._account, self._settings.dp_epsilon
        step, times = self._plan(options, samples)
        after = self._epsilon(account.with_more(step, times), self._settings.dp_delta)
        if limit is not None and after > limit:
            if not account.exhausted:
                log.warning(
                    "privacy.dp_epsilon is reached: this node stops training", spent=account.epsilon, limit=limit
                )
            account.exhausted = True
            return False
        try:
            account.spend(step, times)
        except StoreError as error:
            log.error("cannot record the cost of a training, so it was skipped; trying again", error=str(error))
            return False
        account.epsilon = after
        return True

    def run(
        self,
        descent: TrainingRun,
        space: Workspace,
        options: Options,
        data: Samples,
        seed: int,
        loss: Loss,
        between: Between,
        partners: tuple[PairSeeds, int] = ALONE,
    ) -> None:
        """The steps that `may` permitted."""
        chance = noise_of("dp", self._account.secret, seed)
        step, times = self._plan(options, data.n)
        noise = StepNoise(self._settings, Partners(*partners), step.rate * data.n / options.batch, chance)
        batches = (torch.from_numpy(np.flatnonzero(chance.random(data.n) < step.rate)) for _ in range(times))
        expected = step.rate * data.n
        with _gradients_of_samples(space.module) as params:
            most = max(1, AT_ONCE // max(1, sum(p.numel() for p in params)))

            def losses(index: Tensor) -> Iterator[Tensor]:
                for batch in data.batches(torch.split(index, most), seed_from(seed, next(steps))):
                    for piece in self._independent(batch):
                        x = each_leaf(piece.x, _contiguous)
                        yield loss(call(space.module, x), piece.target)

            steps = count()
            descent.follow(batches, lambda index: self._noisy(params, index, expected, losses, noise), between)

    def _independent(self, batch: Batch) -> Iterator[Batch]:
        """Single samples if the loss of the model or of the task may be a mean over the labels that the batch does
        not ignore: one sample would then scale the gradients of the others."""
        labels = leaves((batch.x, batch.y) if self._own_loss else batch.x)
        if not any(not t.is_floating_point() and bool((t == IGNORED).any()) for t in labels):
            yield batch
            return
        for row in (slice(i, i + 1) for i in range(batch.n)):
            yield Batch(take(batch.x, row), take(batch.y, row), 1)

    def _plan(self, options: Options, samples: int) -> tuple[DpStep, int]:
        batch = min(options.batch, samples)
        times = options.steps if options.steps is not None else max(1, round(options.epochs * samples / batch))
        return DpStep(self._settings.dp_noise, batch / samples), times

    def _noisy(
        self,
        params: list[nn.Parameter],
        index: Tensor,
        expected: float,
        losses: LossAt,
        noise: StepNoise,
    ) -> None:
        """The gradient of a batch: clipped, summed, with noise, divided by the expected batch size."""
        clip = self._settings.dp_clip
        sums = [torch.zeros_like(p) for p in params]
        for loss in losses(index) if len(index) else ():
            loss.backward()  # type: ignore[no-untyped-call]
            if not self._compared:
                self._compare(params)
            singles = [p.grad_sample.flatten(1) for p in params]  # type: ignore[attr-defined]
            norms = torch.stack([g.norm(dim=1) for g in singles]).norm(dim=0)
            factors = torch.nan_to_num((clip / norms).clamp(max=1.0))
            for total, single, param in zip(sums, singles, params, strict=True):
                total += (factors @ torch.nan_to_num(single)).view_as(param)
                param.grad_sample = None  # type: ignore[attr-defined]
        for total, param in zip(sums, params, strict=True):
            assert param.grad is not None
            param.grad.copy_((total + noise.like(param)) / expected)

    def _compare(self, params: list[nn.Parameter]) -> None:
        """Opacus has its own gradient rules for many layers; a wrong one would void the guarantee."""
        for param in params:
            ours, theirs = param.grad_sample.mean(0), param.grad  # type: ignore[attr-defined]
            assert theirs is not None
            if not theirs.isfinite().all():
                return
            if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3 * float(theirs.abs().max()) + 1e-7):
                raise TaskError("privacy.dp: Opacus and torch disagree about the gradients of this model")
        self._compared = True


def _contiguous(x: Tensor) -> Tensor:
    """Opacus is wrong for other memory formats."""
    return x.clone(memory_format=torch.contiguous_format)


def check_buffers(task: str, before: Model, after: Vector) -> None:
    """Buffers get no noise, so they must not change."""
    for entry, span in before.layout.spans():
        if not entry.trained and not np.array_equal(before.vector[span], after[span], equal_nan=True):
            raise TaskError(
                f"task {task}: privacy.dp adds no noise to {entry.name}, which training changes: "
                "use layers that keep no statistics of samples"
            )


@contextmanager
def _gradients_of_samples(module: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Within the context, a backward pass stores per-sample gradients in the yielded parameters."""
    from opacus import GradSampleModule

    warnings.filterwarnings(
        "ignore", "Full backward hook is firing"
    )  # because the first layer's inputs have no gradients
    hooked = GradSampleModule(module, loss_reduction="mean", strict=True)
    try:
        yield [p for p in module.parameters() if p.requires_grad]
    finally:
        _undo(hooked, module)


def _undo(hooked: GradSampleModule, module: nn.Module) -> None:
    """Remove the hooks: the module belongs to a pool, and other nodes train it without hooks."""
    hooked.remove_hooks()
    for name in ("grad_sample", "_forward_counter", "_current_grad_sample"):
        for param in module.parameters():
            if hasattr(param, name):
                delattr(param, name)
