"""A whole learner in a few lines of numpy: data is one point, training walks half the way to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pfl_node.model import Entry, Layout, Model
from pfl_node.types import Eval, Part, Split

LAYOUT = Layout((Entry("core", (3,)),), (Entry("head", (2,)),))


class ToyLearner:
    """Deterministic; its loss is the distance to its point."""

    layout = LAYOUT
    samples = 10

    def __init__(self, point: float = 0.0, cluster: int | None = None) -> None:
        self.point = point
        self.cluster = cluster
        self.trained: list[dict[str, Any]] = []

    def fresh(self, seed: int, part: Part = "model") -> Model:
        vector = np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)
        return Model(LAYOUT, vector).of(part)

    def train(
        self, model: Model, *, seed: int, between: Callable[[], None] | None = None, **options: Any
    ) -> Model:
        self.trained.append({"seed": seed, **options})
        if between:
            between()
        return Model(LAYOUT, ((model.vector + np.float32(self.point)) / 2).astype(np.float32))

    def score(
        self, models: Sequence[Model], *, split: Split = "train", seed: int = 0, **options: Any
    ) -> tuple[Eval, ...]:
        losses = [float(np.abs(m.vector - self.point).mean()) for m in models]
        return tuple(Eval(loss=loss, accuracy=1 / (1 + loss), samples=self.samples) for loss in losses)

    def tensors(self, model: Model) -> dict[str, Any]:
        return {entry.name: model.vector[span].reshape(entry.shape) for entry, span in model.layout.spans()}


def constant(value: float) -> Model:
    return Model(LAYOUT, np.full(LAYOUT.size, value, dtype=np.float32))
