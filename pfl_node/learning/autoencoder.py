"""The novelty of samples: reconstruction errors of an autoencoder trained on a node's own inputs (thesis 004,
section 3.1 and equation 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.auxiliary import Auxiliary
from pfl_node.learning.samples import Samples
from pfl_node.learning.seeding import seed_layers, seeded
from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import Between, TrainingRun, batches
from pfl_node.learning.workspace import Workspace
from pfl_node.learning.workspace_pool import WorkspacePool, pool_for
from pfl_node.model import Model
from pfl_node.seeds import seed_from

LR, WEIGHT_DECAY = 1e-3, 1e-5
BATCH = 64  # used if neither the settings nor the task have one
HIDDEN, LATENT = 128, 16

Factory = Callable[[], nn.Module]


def symmetric(inputs: int) -> nn.Module:
    """A symmetric MLP for flat inputs in [0, 1]."""
    latent = min(LATENT, inputs)
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, latent),
        nn.Linear(latent, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, inputs),
        nn.Sigmoid(),
    )


class Novelty:
    """Compares the auxiliary samples with a node's own. Initial weights and scaling depend only on the auxiliary
    samples, so that the errors of two nodes differ only because of their data. Results do not depend on when they
    are requested."""

    def __init__(
        self, task: str, own: Samples, about: Auxiliary, factory: Factory | None, batch: int | None
    ) -> None:
        self._task, self._own, self._about, self._factory = task, own, about, factory
        self._batch = batch or BATCH
        self._known: dict[int, Tensor] = {}
        if factory is not None:
            self._try()

    def errors(self, epochs: int, between: Between) -> Tensor:
        """The mean squared error of each auxiliary sample after training for `epochs`; cached."""
        if epochs not in self._known:
            with self._pool.borrow() as space:
                space.load(self._start())
                self._fit(space, epochs, between)
                space.module.eval()
                self._known[epochs] = self._measure(space.module, between)
        return self._known[epochs]

    def _fit(self, space: Workspace, epochs: int, between: Between) -> None:
        n, module = self._own.n, space.module
        options = Options("adam", LR, 0.0, WEIGHT_DECAY, self._batch, epochs, None)
        descent = TrainingRun(space, options, lone_samples=min(self._batch, n) == 1)
        seed_layers(self._seed, space.flat.device)
        chosen = batches(n, options, self._seed, single=not space.batch_norms)
        read = self._own.batches(chosen, self._seed)
        descent.run(read, lambda batch: self._error(module, batch.x).mean(), between)

    def _measure(self, module: nn.Module, between: Between) -> Tensor:
        rows = []
        for some in torch.split(self._about.x, self._about.batch):
            with torch.inference_mode():
                rows.append(self._error(module, some).cpu())
            between()
        return torch.cat(rows)

    def _error(self, module: nn.Module, x: Tensor) -> Tensor:
        """The reconstruction error of each sample (3.3)."""
        x = self._scaled(x)
        again: Tensor = module(x)
        return (again.reshape(x.shape) - x).square().reshape(len(x), -1).mean(1)

    def _scaled(self, x: Tensor) -> Tensor:
        # paper: its code normalises inputs by mean and deviation; here: they are scaled to 0..1, because the last
        # layer is a sigmoid
        low, width = self._range
        x = ((x.float() - low) / width).clamp(0, 1)
        return x if self._factory else x.reshape(len(x), -1)

    @cached_property
    def _range(self) -> tuple[float, float]:
        low, high = (v.item() for v in self._about.x.aminmax())
        return low, high - low or 1.0

    @cached_property
    def _seed(self) -> int:
        return seed_from("autoencoder", self._about.digest)

    @cached_property
    def _pool(self) -> WorkspacePool:
        module = self._build()
        return pool_for(module, layouts.placement_of(module), self._about.x.device)

    def _start(self) -> Model:
        return Model(self._pool.layout, layouts.pack(self._build(), self._pool.layout))

    def _build(self) -> nn.Module:
        with seeded(self._seed):
            module = self._factory() if self._factory else symmetric(self._about.x[0].numel())
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise TaskError(f"task {self._task}: the autoencoder is of type {kind}, not an nn.Module")
        return module

    def _try(self) -> None:
        """Run the task's autoencoder on two samples, to detect a mismatch early."""
        self._build()
        try:
            with self._pool.borrow() as space, torch.inference_mode():
                space.load(self._start())
                self._error(space.module, self._about.x[:2])
        except Exception as error:  # the user's code may raise anything
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TaskError(f"task {self._task}: the autoencoder does not fit the inputs: {text}") from error
