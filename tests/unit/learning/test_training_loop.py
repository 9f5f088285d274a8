from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import TrainingRun, nothing
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Vector
from tests.unit.learning.nets import blobs, learner, with_batch_norm

ADAM = Options("adam", 0.01, 0.0, 0.0, 8, 1.0, None)


def space() -> Workspace:
    me = learner(with_batch_norm)
    with me._pool.borrow() as space:
        space.load(me.fresh(0))
        return space


def loss_in(space: Workspace) -> Callable[[Tensor], Tensor]:
    x = blobs().x

    def loss(index: Tensor) -> Tensor:
        return space.module(x[index]).square().mean()  # type: ignore[no-any-return]

    return loss


def test_two_runs_are_one_because_the_optimiser_remembers() -> None:
    pieces = torch.split(torch.arange(40), 8)
    vectors: list[Vector] = []
    for cuts in ([pieces], [pieces[:2], pieces[2:]]):
        here = space()
        descent = TrainingRun(here, ADAM)
        for cut in cuts:
            descent.run(cut, loss_in(here), nothing)
            here.module.eval()  # a look at the model between the two
        vectors.append(here.export())
    assert np.array_equal(vectors[0], vectors[1])


def test_between_is_called_after_every_step() -> None:
    here, calls = space(), []
    TrainingRun(here, ADAM).run([torch.arange(4)] * 3, loss_in(here), lambda: calls.append(1))
    assert len(calls) == 3


def test_nothing_to_train_is_no_step_at_all() -> None:
    me = learner(task_options={"head": "*"})
    with me._pool.borrow() as here:
        here.load(me.fresh(0))
        TrainingRun(here, ADAM, only="core").run([torch.arange(4)], loss_in(here), nothing)
        assert np.array_equal(here.export(), me.fresh(0).vector)
