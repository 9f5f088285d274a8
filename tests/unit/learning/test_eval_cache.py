from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from pfl_node.learning.eval_cache import EvalCache
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data
from pfl_node.model import Model, StateCell
from tests.unit.learning.nets import blobs, learner

LOOKED: list[int] = []  # how many samples, at every look of a module


class Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        LOOKED.append(len(x))
        out: Tensor = self.head(x)
        return out


def two(test: Data, other: Data | None = None) -> tuple[Learner, Learner]:
    first = learner(Watched, task_options={"test": test})
    second = learner(Watched, task_options={"test": other or test})
    LOOKED.clear()
    return first, second


def test_nodes_with_the_same_model_and_the_same_test_data_measure_once() -> None:
    first, second = two(blobs(9))
    model = first.fresh(0)
    copy = Model(second.layout, model.vector.copy())
    assert first.score([model], split="test") == second.score([copy], split="test")
    assert LOOKED == [9]


def test_nodes_that_have_trained_for_different_times_measure_the_same_model_once() -> None:
    """The counters of batch normalisation are a node's own, and have no effect on outputs."""
    options = {"test": blobs(9)}
    first, second = (learner(lambda: nn.Sequential(Watched(), nn.BatchNorm1d(3)), None, options) for _ in range(2))
    cells = [StateCell(me.start(0)) for me in (first, second)]
    model = first.train(first.fresh(0), seed=0, state=cells[0])
    assert not np.array_equal(*(cell.state.private for cell in cells))  # type: ignore[arg-type]
    LOOKED.clear()
    scores = [me.score([model], split="test", state=cell) for me, cell in zip((first, second), cells, strict=True)]
    assert scores[0] == scores[1]
    assert len(LOOKED) == 1


def test_another_model_or_other_data_is_measured_anew() -> None:
    first, second = two(blobs(9), blobs(9, seed=1))
    model = first.fresh(0)
    scores = [first.score([model, first.fresh(1)], split="test"), second.score([model], split="test")]
    assert LOOKED == [9, 9, 9]
    assert len({score.loss for row in scores for score in row}) == 3


def test_training_data_and_samples_of_it_are_looked_at_every_time() -> None:
    first, _ = two(blobs(9))
    model = first.fresh(0)
    for _ in range(2):
        first.score([model], split="train", samples=5)
        first.score([model], split="test", samples=5)
    assert LOOKED == [5, 5, 5, 5]


def test_only_the_last_figures_are_kept() -> None:
    me = learner(Watched, task_options={"test": blobs(9)})
    me._pool.memory = EvalCache(kept=2)
    LOOKED.clear()
    models = [me.fresh(seed) for seed in range(3)]
    me.score([*models, models[2], models[0]], split="test")
    assert LOOKED == [9, 9, 9, 9]


def test_a_model_that_was_measured_is_not_looked_at_again_for_its_confusions() -> None:
    first, second = two(blobs(9))
    model = first.fresh(0)
    (score,) = first.score([model], split="test")
    found = first.confusion(model)
    assert found == second.confusion(model)
    assert LOOKED == [9]
    assert found is not None
    assert sum(row[i] for i, row in enumerate(found)) == round(score.accuracy * 9)
