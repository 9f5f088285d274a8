"""The interface of a learner in a simulation, and its implementation with torch, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from pfl_node.model import Model
from pfl_node.node.ports import LearnerFacts
from pfl_node.protocol.privacy.noisy_scores import Figures
from pfl_node.settings import Settings
from pfl_node.types import Eval, Part, PeerId, Split


class LearnerPort(LearnerFacts, Protocol):
    """One node's data and training on it. Results are determined by the seed."""

    def size(self, split: Split, samples: int | None) -> int:
        """The number of samples that a Score of `samples` uses; None: all of the split."""
        ...

    def batches(self, epochs: float | None = None, steps: int | None = None) -> int:
        """The number of batches of a Train with these options."""
        ...

    def fresh(self, seed: int, part: Part = "model", *, local: bool = False) -> Model: ...

    def train(
        self,
        model: Model,
        *,
        seed: int,
        only: Literal["core", "head"] | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        prox: float = 0.0,
        anchor: Model | None = None,
        round: int = 0,
    ) -> Model: ...

    def score(
        self,
        models: Sequence[Model],
        *,
        split: Split = "train",
        samples: int | None = None,
        own_sample_each: bool = False,
        seed: int = 0,
    ) -> tuple[Eval, ...]: ...

    def each(self, model: Model, split: Split = "train") -> tuple[Figures, Figures]: ...

    def confusion(self, model: Model, split: Split = "test") -> list[list[int]] | None: ...

    def predict(self, model: Model, *, seed: int, novelty: int = 0, counts: bool = False) -> Model: ...

    def distill(self, model: Model, *, seed: int, teacher: Model, **recipe: Any) -> Model: ...


Load = Callable[[int, PeerId], LearnerPort]  # the learner at a place


def learners_of(settings: Settings, nodes: int) -> Load:
    from pfl_node.learning.build import learner_at
    from pfl_node.learning.task import Place
    from pfl_node.sim.attacks.label_flip import poisoned

    def load(index: int, node: PeerId) -> LearnerPort:
        place = Place(index=index, nodes=nodes, seed=settings.seed, node_id=node)
        return learner_at(settings, place, poison=poisoned)

    return load
