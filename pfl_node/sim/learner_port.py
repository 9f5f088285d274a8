"""The interface of a learner in a simulation, and its implementation with torch, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pfl_node.model import Model
from pfl_node.node.ports import LearnerFacts
from pfl_node.protocol.privacy.noisy_scores import Figures
from pfl_node.settings import Settings
from pfl_node.types import PeerId, Split


class LearnerPort(LearnerFacts, Protocol):
    """One node's data and training on it. `Job.run` calls the methods that are not listed here. Results are
    determined by the seed."""

    def size(self, split: Split, samples: int | None) -> int:
        """The number of samples that a Score of `samples` uses; None: all of the split."""
        ...

    def batches(self, epochs: float | None = None, steps: int | None = None) -> int:
        """The number of batches of a Train with these options."""
        ...

    def each(self, model: Model, split: Split = "train") -> tuple[Figures, Figures]:
        """The loss and the accuracy of each sample."""
        ...


Load = Callable[[int, PeerId], LearnerPort]  # the learner at a place


def learners_of(settings: Settings, nodes: int) -> Load:
    from pfl_node.learning.build import learner_at
    from pfl_node.learning.task import Place
    from pfl_node.sim.attacks.malicious import poisoned

    def load(index: int, node: PeerId) -> LearnerPort:
        place = Place(index=index, nodes=nodes, seed=settings.seed, node_id=node)
        return learner_at(settings, place, poison=poisoned)

    return load
