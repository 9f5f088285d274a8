"""Knowledge distillation: a student trains on a teacher's predictions for the auxiliary samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss

from pfl_node.errors import ConfigError, nearest
from pfl_node.learning.auxiliary import Auxiliary
from pfl_node.learning.seeding import generator, seed_layers
from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import Between, TrainingRun, batches
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Vector
from pfl_node.seeds import seed_from

TINY = 1e-12

Loss = Callable[[Tensor, Tensor, float], Tensor]  # of (student's scores, teacher's probabilities, T)


def mse(scores: Tensor, teacher: Tensor, _: float) -> Tensor:
    """The MSE of the raw outputs, as in the thesis' code: the student learns to output probabilities without a
    softmax."""
    return mse_loss(scores, teacher)


def mse_softmax(scores: Tensor, teacher: Tensor, _: float) -> Tensor:
    return mse_loss(scores.softmax(1), teacher)


def ce(scores: Tensor, teacher: Tensor, _: float) -> Tensor:
    """The cross-entropy with one-hot labels (equation 2.3 of the thesis). The samples have none, so the teacher's
    most probable classes are the labels, as in the thesis' code; the text does not say."""
    return cross_entropy(scores, teacher.argmax(1))


def kl(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The KL divergence times T², so that gradients have the same magnitude at every temperature (Hinton et al.
    2015)."""
    student = (scores / temperature).log_softmax(1)
    return kl_div(student, softened(teacher, temperature), reduction="batchmean") * temperature**2


def softened(probabilities: Tensor, temperature: float) -> Tensor:
    """The softmax of scores / T, from the probabilities at T = 1."""
    powers = probabilities.clamp_min(0) ** (1 / temperature)
    return powers / powers.sum(1, keepdim=True).clamp_min(TINY)


LOSSES: dict[str, Loss] = {"mse": mse, "mse_softmax": mse_softmax, "ce": ce, "kl": kl}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train a student. `held`: the share of the samples that is not trained on; with `best` it selects the
    epoch whose model is the answer, otherwise the last epoch's model is."""

    loss: str = "mse"
    temperature: float = 1.0
    epochs: int = 30
    lr: float = 1e-3
    batch: int = 50
    held: float = 0.2
    best: bool = False

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError(f"unknown student loss {self.loss!r}; {nearest(self.loss, LOSSES)}")
        if not 0 <= self.held < 1:
            raise ConfigError(f"a student's held = {self.held}: give a share from 0 to below 1")
        for name in ("temperature", "epochs", "lr", "batch"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"a student's {name} = {getattr(self, name)}: give a number above zero")

    def split(self, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """The samples to train on and those held out; at least one of each if there are two."""
        order = torch.randperm(samples, generator=generator(seed))
        held = min(max(1, round(self.held * samples)), samples - 1) if self.held else 0
        return order[held:], order[:held]


def distill(
    space: Workspace, about: Auxiliary, teacher: Tensor, recipe: Recipe, seed: int, between: Between
) -> tuple[Vector, Vector]:
    """The student after its last epoch, or with `best` after its best one on the samples held out; and its private
    part."""
    module, loss = space.module, LOSSES[recipe.loss]
    train, held = recipe.split(about.n, seed)
    options = Options("adam", recipe.lr, 0.0, 0.0, recipe.batch, 1.0, None)
    descent = TrainingRun(space, options, lone_samples=min(recipe.batch, len(train)) == 1)

    def loss_of(index: Tensor) -> Tensor:
        return loss(module(about.take(index)), teacher[index], recipe.temperature)

    def held_loss() -> float:
        module.eval()
        total = 0.0
        for some in torch.split(held, about.batch):
            with torch.inference_mode():
                total += loss_of(some).item() * len(some)
            between()
        return total / len(held)

    best, least = None, float("inf")

    def exported() -> tuple[Vector, Vector]:
        return space.export(), space.export_private()

    seed_layers(seed, space.flat.device)
    for epoch in range(recipe.epochs):
        chosen = batches(len(train), options, seed_from(seed, epoch), single=not space.batch_norms)
        descent.run((train[piece] for piece in chosen), loss_of, between)
        if recipe.best and len(held) and (now := held_loss()) < least:
            best, least = exported(), now
    return exported() if best is None else best
