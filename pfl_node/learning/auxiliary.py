"""The auxiliary samples of a task (unlabelled inputs that are the same at every place), and predictions for
them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from math import nan

import torch
from torch import Tensor, nn

from pfl_node import predictions
from pfl_node.learning.samples import Samples, Tree, channels_last, in_order
from pfl_node.learning.training_loop import Between
from pfl_node.model import Layout
from pfl_node.types import Eval

IGNORED = -100  # the label that torch's cross-entropy ignores


class Auxiliary:
    """All learners of a process may share the samples: they are not copied."""

    def __init__(
        self,
        x: Tensor,
        classes: int,
        device: torch.device,
        *,
        images: bool,
        batch: int,
        labels: Tensor | None = None,
    ) -> None:
        self.x = x.to(device)
        self.labels = labels
        self.classes = classes
        self.batch = batch  # batch size for evaluation
        self._images = images

    @property
    def n(self) -> int:
        return len(self.x)

    @cached_property
    def digest(self) -> str:
        """A digest of the samples and their order, the same on every machine."""
        kind = f"{self.x.dtype} {tuple(self.x.shape)}"
        seen = hashlib.sha256(kind.encode())
        seen.update(self.x.cpu().contiguous().numpy().data)
        return seen.hexdigest()[:16]

    @cached_property
    def layout(self) -> Layout:
        """The layout of predictions for these samples, independent of the model."""
        return predictions.layout_for(self.n, self.classes, self.digest)

    def take(self, index: Tensor | slice) -> Tensor:
        """Some of the samples, in the memory format that convolutions prefer."""
        return channels_last(self.x[index]) if self._images else self.x[index]

    def score(self, said: predictions.Array) -> Eval:
        """The accuracy of the class with the highest probability; NaN without labels."""
        if self.labels is None:
            return Eval(nan, nan, 0)
        return Eval(nan, float((said.argmax(1) == self.labels.numpy()).mean()), self.n)

    def outputs(self, module: nn.Module, between: Between) -> Tensor:
        """Class probabilities for each sample."""
        rows = []
        for start in range(0, self.n, self.batch):
            with torch.inference_mode():
                rows.append(module(self.take(slice(start, start + self.batch))).softmax(1).cpu())
            between()
        return torch.cat(rows)


def classes_of(output: Tree, y: Tree, *, own_loss: bool) -> int | None:
    """The number of classes that a model's output scores; None: it is something else."""
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2 or not isinstance(y, Tensor):
        return None
    hard = y.ndim == 1 and not y.is_floating_point()
    soft = y.shape[1:] == output.shape[1:] and y.is_floating_point() and not own_loss
    return output.shape[1] if hard or soft else None


def class_counts(data: Samples, classes: int, batch: int) -> Tensor:
    """Samples per class; fractional if labels are probabilities."""
    if data.labels is not None:
        return _counts(data.labels, classes)
    counts = [_counts(some.y, classes) for some in data.batches(in_order(data.n, batch))]
    return torch.stack(counts).sum(0)


def _counts(y: Tensor, classes: int) -> Tensor:
    if y.is_floating_point():
        return y.sum(0).cpu()
    return torch.bincount(y[y != IGNORED], minlength=classes).cpu()
