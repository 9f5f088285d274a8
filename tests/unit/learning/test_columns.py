"""A model whose `forward` takes the labels, as those of Hugging Face do, gets them and computes its own loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfl_node.learning.columns import with_inputs_of
from pfl_node.learning.data import complete
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Task
from pfl_node.settings import DataSettings, TrainSettings

IDS = torch.arange(80).view(20, 4) % 6


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 5), nn.Linear(5, 6)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.out(self.embed(input_ids))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)


@pytest.mark.parametrize("memory", ["always", "never"])
@pytest.mark.parametrize(
    "data",
    [
        [{"input_ids": row, "labels": row} for row in IDS],
        {"input_ids": IDS, "labels": IDS},
        [({"input_ids": row, "length": 4}, row) for row in IDS],
    ],
    ids=["rows", "columns", "pairs"],
)
def test_a_single_input_and_labels_reach_the_model_by_name(data: Any, memory: Any) -> None:
    settings = DataSettings(memory=memory)
    learner = Learner(Task("language", Language, data), TrainSettings(lr=0.5), data=settings)
    model = learner.fresh(0)
    before, after = (learner.score([m])[0].loss for m in (model, learner.train(model, seed=1, epochs=5)))
    assert after < before


def test_labels_are_not_passed_when_the_task_has_its_own_loss() -> None:
    task = Task(
        "language", Language, {"input_ids": IDS, "labels": IDS}, loss=lambda output, y: output.logits.mean()
    )
    assert "labels" not in with_inputs_of(Language(), complete(task, 0)).train.x
