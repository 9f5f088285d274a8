"""The gradient of each sample of a batch, by Opacus, for the private training.

Clipping bounds what a sample changes only if its gradient does not depend on the other samples of its batch. A
layer, a loss or a task's `collate` may break this, so a few samples are computed alone and compared. This finds
common mistakes, but proves nothing: code that mixes samples in other batches only is not found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning.auxiliary import IGNORED
from pfl_node.learning.samples import Batch, Samples, call, each_leaf, leaves, take
from pfl_node.learning.seeding import generator
from pfl_node.plugin import in_a_line, line_of

if TYPE_CHECKING:
    from opacus import GradSampleModule

AT_ONCE = 1 << 26  # numbers of per-sample gradients in memory at a time
BATCHES, SIZE, ALONE = 3, 8, 4  # batches that are checked, their size, samples of each that are computed alone
MIXED = (
    "privacy.dp: the gradient of a sample depends on the other samples of its batch, so clipping does not bound "
    "it: leave out a `collate` that mixes samples (mixup), a loss that is weighted or normalised over the batch, "
    "or the layer that mixes samples"
)
Loss = Callable[[Any, Any], Tensor]  # called with (output, y); the mean over a batch


class SampleGradients:
    def __init__(
        self, module: nn.Module, params: list[nn.Parameter], data: Samples, loss: Loss, *, own_loss: bool
    ) -> None:
        self._module, self._params, self._data, self._loss = module, params, data, loss
        self._own_loss = own_loss  # the loss is the task's, not the default
        self._most = max(1, AT_ONCE // max(1, sum(p.numel() for p in params)))

    def pieces(self, index: Tensor, seed: int | None) -> Iterator[list[Tensor]]:
        """The gradients by each parameter, one row per sample, in pieces that fit in memory."""
        for batch in self._data.batches(torch.split(index, self._most), seed):
            for piece in self._independent(batch):
                x = each_leaf(piece.x, _contiguous)
                self._loss(call(self._module, x), piece.target).backward()  # type: ignore[no-untyped-call]
                yield [p.grad_sample.flatten(1) for p in self._params]  # type: ignore[attr-defined]
                for param in self._params:
                    param.grad_sample = None  # type: ignore[attr-defined]

    def check(self, seed: int) -> bool:
        """Raises TaskError if a gradient differs from torch's, or depends on other samples; False if gradients are
        not finite. Layers such as dropout then continue as if nothing had been computed."""
        if not self._params:
            return True
        device = self._params[0].device
        chosen = torch.randperm(self._data.n, generator=generator(seed))[: BATCHES * SIZE]
        indices = torch.split(chosen, min(SIZE, self._most))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            finite = [self._as_torch(index) for index in indices]
            if any(self._mixes(index) for index in indices):
                raise TaskError(MIXED)
        self._zero()
        return all(finite)

    def _independent(self, batch: Batch) -> Iterator[Batch]:
        """Single samples if the loss of the model or of the task may be a mean over the labels that the batch does
        not ignore: one sample would then scale the gradients of the others."""
        labels = leaves((batch.x, batch.y) if self._own_loss else batch.x)
        if not any(not t.is_floating_point() and bool((t == IGNORED).any()) for t in labels):
            yield batch
            return
        for row in (slice(i, i + 1) for i in range(batch.n)):
            yield Batch(take(batch.x, row), take(batch.y, row), 1)

    def _zero(self) -> None:
        for param in self._params:
            assert param.grad is not None
            param.grad.zero_()

    def _as_torch(self, index: Tensor) -> bool:
        """Opacus has its own gradient rules for many layers; a wrong one would void the guarantee."""
        self._zero()
        means = [[rows.mean(0) for rows in piece] for piece in self.pieces(index, None)]
        for param, parts in zip(self._params, zip(*means, strict=True), strict=True):
            theirs = param.grad
            assert theirs is not None
            if not theirs.isfinite().all():
                return False
            ours, near = torch.stack(parts).sum(0).view_as(theirs), 1e-3 * float(theirs.abs().max()) + 1e-7
            if not torch.allclose(ours, theirs, rtol=1e-2, atol=near):
                raise TaskError("privacy.dp: Opacus and torch disagree about the gradients of this model")
        return True

    def _mixes(self, index: Tensor) -> bool:
        """Whether gradients differ if samples are computed alone. If they differ even between two passes over the
        same batch, layers without parameters, such as dropout, are put into evaluation mode; if that does not
        help, nothing is concluded."""
        for calm in (False, True):
            with _without_chance(self._module) if calm else nullcontext():
                inside, alone = self._rows([index]), self._alone(index[:ALONE])
                if _alike(alone, inside[: len(alone)]):
                    return False
                if _alike(self._rows([index]), inside):
                    return True
        return False

    def _alone(self, index: Tensor) -> Tensor:
        try:
            return self._rows(torch.split(index, 1))
        except TaskError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise TaskError(
                f"privacy.dp: a batch of one sample, which may be drawn, fails{line_of(error)}: {in_a_line(error)}"
            ) from error

    def _rows(self, indices: Iterable[Tensor]) -> Tensor:
        return torch.cat([torch.cat(piece, 1) for index in indices for piece in self.pieces(index, None)])


def _alike(ours: Tensor, theirs: Tensor) -> bool:
    """One sample may differ by chance, because of a ReLU at zero."""
    size = theirs.norm(dim=1)
    far = (ours - theirs).norm(dim=1) > 1e-2 * size + 1e-3 * size.max() + 1e-7
    return int(far.sum()) <= 1


@contextmanager
def _without_chance(module: nn.Module) -> Iterator[None]:
    """Layers with parameters stay in training mode, which Opacus needs."""
    changed = [m for m in module.modules() if m.training and not any(True for _ in m.parameters(recurse=False))]
    for layer in changed:
        layer.training = False
    try:
        yield
    finally:
        for layer in changed:
            layer.training = True


def _contiguous(x: Tensor) -> Tensor:
    """Opacus is wrong for other memory formats."""
    return x.clone(memory_format=torch.contiguous_format)


@contextmanager
def gradients_of_samples(module: nn.Module) -> Iterator[list[nn.Parameter]]:
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
