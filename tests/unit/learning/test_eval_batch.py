from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfl_node.learning import eval_batch, memory_limit
from pfl_node.learning.eval_batch import batch_for
from pfl_node.learning.learner import Learner
from pfl_node.learning.samples import StackedSamples
from pfl_node.learning.task import Data, Task
from pfl_node.settings import TrainSettings

WORDS, TOKENS = 500, 16


class LanguageModel(nn.Module):
    largest = 0  # samples in one batch

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        LanguageModel.largest = max(LanguageModel.largest, len(x))
        return self.out(self.table(x)).transpose(1, 2)  # type: ignore[no-any-return]


TEXT = torch.arange(40 * TOKENS).view(40, TOKENS) % WORDS


def test_a_small_model_is_evaluated_with_the_largest_batch() -> None:
    samples = StackedSamples(torch.ones(20, 4), torch.zeros(20).long())
    assert batch_for(nn.Linear(4, 2), samples, 512) == 512


def test_large_outputs_make_the_batch_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    output = WORDS * TOKENS * 4  # bytes of a sample
    monkeypatch.setattr(eval_batch, "BUDGET", 60 * output)
    found = batch_for(LanguageModel(), StackedSamples(TEXT, TEXT), 512)
    assert 60 // 8 <= found <= 60 // 4


def test_large_activations_make_the_batch_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_batch, "BUDGET", 100_000)
    wide = nn.Sequential(nn.Linear(4, 2500), nn.Linear(2500, 2))
    assert batch_for(wide, StackedSamples(torch.ones(20, 4), torch.zeros(20)), 512) == 4


def test_at_least_one_sample_is_evaluated_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_batch, "available_memory", lambda: 0)
    assert batch_for(LanguageModel(), StackedSamples(TEXT, TEXT), 512) == 1


def test_the_setting_decides() -> None:
    me = Learner(Task("lm", LanguageModel, Data(TEXT, TEXT)), TrainSettings(), "cpu", eval_batch=3)
    LanguageModel.largest = 0
    me.score([me.fresh(0)])
    assert LanguageModel.largest == 3


def test_the_limit_of_a_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "CGROUP", tmp_path)
    free = memory_limit.available_memory()
    (tmp_path / "memory.max").write_text("50000000\n")
    (tmp_path / "memory.current").write_text("20000000\n")
    assert memory_limit.available_memory() == 30_000_000 < free
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit.available_memory() > 30_000_000
