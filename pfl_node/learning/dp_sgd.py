"""DP-SGD: clip every sample's gradient and add noise to the sum (Abadi et al. 2016, Algorithm 1).

Opacus provides per-sample gradients and the accountant. Batches are Poisson samples: every sample is included
independently with the same probability, so batches differ in size and may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import sqrt
from typing import NamedTuple

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, StoreError, TaskError
from pfl_node.learning.layout import is_frozen
from pfl_node.learning.sample_gradients import Loss, SampleGradients, gradients_of_samples
from pfl_node.learning.samples import Samples
from pfl_node.learning.seeding import noise_of
from pfl_node.learning.task import Task
from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import Between, TrainingRun
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Model, Vector
from pfl_node.protocol.privacy.dp_account import DpAccount, DpStep
from pfl_node.protocol.privacy.pair_noise import PairSeeds, agreement, own_variance
from pfl_node.seeds import seed_from
from pfl_node.settings.sections import PrivacySettings

log = structlog.get_logger(__name__)


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
        self,
        settings: PrivacySettings,
        partners: Partners,
        fill: float,
        chance: np.random.Generator,
        agreed: str,
    ) -> None:
        self._own, self._scale = chance, settings.dp_clip * settings.dp_noise
        self._pairs = [(sign, noise_of("pair", seed, agreed)) for sign, seed in partners.seeds]
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
        self._compared = False  # whether the gradients of samples were checked, once per learner
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
        near, duration = Partners(*partners), options.epochs if options.steps is None else options.steps
        agreed = agreement(self._settings, near.degree, options.batch, options.lr, duration)
        noise = StepNoise(self._settings, near, step.rate * data.n / options.batch, chance, agreed)
        batches = (torch.from_numpy(np.flatnonzero(chance.random(data.n) < step.rate)) for _ in range(times))
        expected = step.rate * data.n
        steps = count()
        with gradients_of_samples(space.module) as params:
            singles = SampleGradients(space.module, params, data, loss, own_loss=self._own_loss)
            self._compared = self._compared or singles.check(seed)

            def differentiate(index: Tensor) -> None:
                found: Iterable[list[Tensor]] = ()
                if len(index):
                    found = singles.pieces(index, seed_from(seed, next(steps)))
                self._noisy(params, found, expected, noise)

            descent.follow(batches, differentiate, between)

    def _plan(self, options: Options, samples: int) -> tuple[DpStep, int]:
        batch = min(options.batch, samples)
        times = options.steps if options.steps is not None else max(1, round(options.epochs * samples / batch))
        return DpStep(self._settings.dp_noise, batch / samples), times

    def _noisy(
        self, params: list[nn.Parameter], found: Iterable[list[Tensor]], expected: float, noise: StepNoise
    ) -> None:
        """The gradient of a batch: clipped, summed, with noise, divided by the expected batch size."""
        clip = self._settings.dp_clip
        sums = [torch.zeros_like(p) for p in params]
        for singles in found:
            norms = torch.stack([g.norm(dim=1) for g in singles]).norm(dim=0)
            factors = torch.nan_to_num((clip / norms).clamp(max=1.0))
            for total, single, param in zip(sums, singles, params, strict=True):
                total += (factors @ torch.nan_to_num(single)).view_as(param)
        for total, param in zip(sums, params, strict=True):
            assert param.grad is not None
            param.grad.copy_((total + noise.like(param)) / expected)


def check_buffers(task: str, before: Model, after: Vector) -> None:
    """Buffers get no noise, so they must not change."""
    for entry, span in before.layout.spans():
        if not entry.trained and not np.array_equal(before.vector[span], after[span], equal_nan=True):
            raise TaskError(
                f"task {task}: privacy.dp adds no noise to {entry.name}, which training changes: "
                "use layers that keep no statistics of samples"
            )
