"""A learner in a few lines of numpy: its data is one point, and training moves half the way to it."""

# ruff: noqa: ARG001, ARG002 - the parameters are those of any learner

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from pfl_node import predictions
from pfl_node.errors import ConfigError, LayoutMismatch
from pfl_node.model import Entry, Layout, Model
from pfl_node.plugin import check_name
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.types import ACCURACY, Eval, Part, PeerId, Split

BATCH = 8
STEP = 0.01  # along a correction
LAYOUT = Layout((Entry("core", (3,)),), (Entry("head", (2,)),))
AUXILIARY = np.array([-2.0, 0.0, 1.0, 3.0], np.float32)  # points to classify as above or below the model's


class ToyLearner:
    """Deterministic. The loss is the distance to the point."""

    layout = LAYOUT
    private_layout = Layout((), ())
    predictions = predictions.layout_for(len(AUXILIARY), 2, "toy")
    samples = 10
    stateful = False
    headline = ACCURACY

    def __init__(self, point: float = 0.0, cluster: int | None = None) -> None:
        self.point = point
        self.cluster = cluster
        self.account = DpAccount()
        self.trained: list[dict[str, Any]] = []

    def size(self, split: Split, samples: int | None) -> int:
        return self.samples

    def batches(self, epochs: float | None = None, steps: int | None = None) -> int:
        return steps or max(1, ceil((epochs or 1.0) * self.samples / BATCH))

    def fresh(self, seed: int, part: Part = "model", *, local: bool = False) -> Model:
        vector = np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)
        return Model(LAYOUT, vector).of(part)

    def train(
        self, model: Model, *, seed: int, between: Callable[[], None] | None = None, **options: Any
    ) -> Model:
        self.trained.append({"seed": seed, **options})
        _check_objective(**options)
        if between:
            between()
        vector = (model.vector + np.float32(self.point)) / 2
        if (correction := options.get("correction")) is not None:
            vector = vector - np.float32(STEP) * correction.vector
        return Model(LAYOUT, vector.astype(np.float32))

    def gradient(self, model: Model, **options: Any) -> Model:
        """Of half the squared distance to the point."""
        return Model(LAYOUT, model.vector - np.float32(self.point))

    def score(
        self, models: Sequence[Model], *, split: Split = "train", seed: int = 0, **options: Any
    ) -> tuple[Eval, ...]:
        losses = [float(np.abs(m.vector - self.point).mean()) for m in models]
        return tuple(Eval(loss=loss, accuracy=1 / (1 + loss), samples=self.samples) for loss in losses)

    def each(self, model: Model, split: Split = "train") -> tuple[Any, Any]:
        score = self.score([model])[0]
        return np.full(self.samples, score.loss), np.full(self.samples, score.accuracy)

    def confusion(self, model: Model, split: Split = "test") -> list[list[int]]:
        accuracy = self.score([model])[0].accuracy
        right = 0 if np.isnan(accuracy) else round(self.samples * accuracy)
        return [[right, self.samples - right], [0, 0]]

    def predict(
        self, model: Model, *, seed: int, between: Callable[[], None] | None = None, **options: Any
    ) -> Model:
        above = 1 / (1 + np.exp(model.vector.mean() - AUXILIARY))
        strange = np.abs(AUXILIARY - self.point) + 0.1 if options.get("novelty") else None
        counts = np.array([self.samples, 0]) if options.get("counts") else None
        return predictions.pack(self.predictions, np.stack([above, 1 - above], 1), strange, counts)

    def distill(
        self, model: Model, *, teacher: Model, seed: int, between: Callable[[], None] | None = None, **options: Any
    ) -> Model:
        """Moves half the way to the point that the teacher implies."""
        above = np.clip(predictions.outputs(teacher)[:, 0], 1e-6, 1 - 1e-6)
        point = np.float32((AUXILIARY - np.log(above / (1 - above))).mean())
        return Model(LAYOUT, ((model.vector + point) / 2).astype(np.float32))

    def tensors(self, model: Model) -> dict[str, Any]:
        return {entry.name: model.vector[span].reshape(entry.shape) for entry, span in model.layout.spans()}


def _check_objective(
    correction: Model | None = None,
    penalty: str | None = None,
    anchor: Model | None = None,
    anchors: Mapping[str, Model] | None = None,
    **options: Any,
) -> None:
    """A penalty is not computed here, but its file must define it."""
    for model in (correction, anchor, *(anchors or {}).values()):
        if model is not None and model.layout != LAYOUT:
            raise LayoutMismatch(f"a Train with {model!r}, which does not have the layout of the model")
    if penalty is not None and ":" in penalty:
        check_name("penalty", penalty, ConfigError)


def two_clusters(index: int, node: PeerId) -> ToyLearner:
    """Alternating points -1 and 1."""
    return ToyLearner(point=(-1.0, 1.0)[index % 2], cluster=index % 2)
