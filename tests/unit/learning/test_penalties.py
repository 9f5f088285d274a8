"""Terms of the loss that a policy asks for by name: MOON's, a task's own, and FedProto's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning.fit_context import Work
from pfl_node.learning.learner import Learner
from pfl_node.learning.penalties import head_watched, moon
from pfl_node.learning.samples import Batch
from pfl_node.model import Model, StateCell
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import CLASSES, blobs, learner, plain, task, with_batch_norm


def squares(model: nn.Module, batch: Any, output: Any, anchors: Any, weight: float = 1.0) -> Tensor:
    """Half the squared distance to the anchor `goal`: a proximal term, written as a penalty."""
    pairs = zip(model.parameters(), anchors["goal"].parameters(), strict=True)
    return weight / 2 * torch.stack([(a - b).square().sum() for a, b in pairs]).sum()


def test_a_penalty_of_the_task_is_added_to_the_loss() -> None:
    me = learner(task_options={"penalties": {"squares": squares}})
    model, goal = me.fresh(0), me.fresh(5)
    asked: dict[str, Any] = {"penalty": "squares", "anchors": {"goal": goal}, "knobs": {"weight": 0.7}}
    found = me.train(model, seed=1, **asked)
    np.testing.assert_allclose(found.vector, me.train(model, seed=1, prox=0.7, anchor=goal).vector, atol=1e-5)
    assert me.train(model, seed=1, **asked) == found


def test_the_anchors_are_in_evaluation_mode_not_trained_and_not_changed() -> None:
    seen: list[tuple[bool, bool]] = []

    def looks(model: nn.Module, batch: Any, output: Any, anchors: Any) -> Tensor:
        (other,) = anchors.values()
        seen.append((other.training, other(batch.x).requires_grad))
        assert model.training
        return torch.zeros(())

    me = learner(with_batch_norm, task_options={"penalties": {"looks": looks}})
    model = me.fresh(0)
    found = me.train(model, seed=1, penalty="looks", anchors={"a": me.fresh(1)})
    assert set(seen) == {(False, False)}
    assert found == me.train(model, seed=1)  # also: the borrowed workspaces train as before
    with me._pool.borrow() as space:
        assert not hasattr(space.module, "head_input")


def test_a_penalty_in_a_file_is_found_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def none(model, batch, output, anchors):\n    return output.sum() * 0\n")
    me = learner()
    model = me.fresh(0)
    assert me.train(model, seed=1, penalty=f"{tmp_path}/mine.py:none") == me.train(model, seed=1)


def test_mistakes_with_penalties_are_named() -> None:
    many = {"wrong": lambda *_, **__: 3, "rows": lambda _, __, output, ___: output.square()}
    me = learner(task_options={"penalties": many})
    with pytest.raises(ConfigError, match="task blobs has no penalty 'mon'; did you mean 'moon'"):
        me.train(me.fresh(0), seed=1, penalty="mon")
    with pytest.raises(TaskError, match="penalty wrong returned a int: return a tensor of one number"):
        me.train(me.fresh(0), seed=1, penalty="wrong")
    with pytest.raises(
        TaskError, match=r"penalty rows returned a Tensor of \[\d+, 3\]: return a tensor of one number"
    ):
        me.train(me.fresh(0), seed=1, penalty="rows")


def test_privacy_refuses_a_penalty_before_it_spends_anything() -> None:
    pytest.importorskip("opacus")
    me = Learner(task(), TrainSettings(), "cpu", PrivacySettings(dp=True))
    model = me.fresh(0)
    with pytest.raises(ConfigError, match=r"privacy\.dp cannot protect the penalty 'moon'"):
        me.train(model, seed=1, penalty="moon", anchors={"global": model, "previous": model})
    assert me.account.steps == {}


def test_a_loop_of_the_task_adds_the_penalty_or_is_refused() -> None:
    def fit(model: nn.Module, work: Work) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
        for batch in work.batches():
            optimizer.zero_grad()
            output = model(batch.x)
            (work.loss(output, batch.y) + work.penalty(batch, output)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def forgets(model: nn.Module, work: Work) -> None:
        list(work.batches())

    penalties = {"penalties": {"squares": squares}}
    own, built_in = learner(task_options={"fit": fit, **penalties}), learner(task_options=penalties)
    model = own.fresh(0)
    asked: dict[str, Any] = {"seed": 1, "penalty": "squares", "anchors": {"goal": own.fresh(5)}}
    found = own.train(model, state=StateCell(own.start(0)), **asked)
    np.testing.assert_allclose(found.vector, built_in.train(model, **asked).vector, atol=1e-5)
    without = own.train(model, seed=1, state=StateCell(own.start(0)))
    np.testing.assert_allclose(without.vector, built_in.train(model, seed=1).vector, atol=1e-5)
    careless = learner(task_options={"fit": forgets, **penalties})
    with pytest.raises(TaskError, match=r"leaves out the policy's penalty: add work\.penalty"):
        careless.train(model, state=StateCell(careless.start(0)), **asked)


# -- MOON (Li, He & Song 2021) -----------------------------------------------------------------------------------


def test_moon_is_equation_3_of_the_paper() -> None:
    """-log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))."""
    torch.manual_seed(0)
    model, near, far = plain(), plain(), plain()
    x, head = torch.randn(6, 4), {"3"}
    with head_watched(model, head), head_watched(near, head), head_watched(far, head):
        output = model(x)
        found = moon(model, Batch(x, None, 6), output, {"global": near, "previous": far}, mu=5.0, tau=0.5)
    z, z_glob, z_prev = (m[:3](x) for m in (model, near, far))  # type: ignore[index]
    a, b = ((fn.cosine_similarity(z, other) / 0.5).exp() for other in (z_glob, z_prev))
    expected = -5.0 * (a / (a + b)).log().mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_moon_moves_representations_towards_the_global_model() -> None:
    me = learner(lr=0.1)
    start, near, far = (me.fresh(seed) for seed in range(3))
    asked: dict[str, Any] = {"penalty": "moon", "anchors": {"global": near, "previous": far}}
    x = blobs().x

    def closeness(model: Model) -> float:
        def z(one: Model) -> Tensor:
            module = me.module()
            module.load_state_dict({name: torch.tensor(t) for name, t in me.tensors(one).items()})
            return module[:3](x)  # type: ignore[index, no-any-return]

        similar = [fn.cosine_similarity(z(model), z(other)).mean() for other in (near, far)]
        return (similar[0] - similar[1]).item()

    trained = me.train(start, seed=1, epochs=5, **asked, knobs={"mu": 5.0})
    assert closeness(trained) > closeness(me.train(start, seed=1, epochs=5)) + 0.05


# -- FedProto (Tan et al. 2022): only prototypes travel ---------------------------------------------------------


class PrototypeNet(nn.Module):
    """Sums and counts of the representations of each class are buffers that travel; the rest is private."""

    sums: Tensor
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)
        self.register_buffer("sums", torch.zeros(CLASSES, 5))
        self.register_buffer("counts", torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())  # type: ignore[no-any-return]


def fedproto(model: Any, batch: Any, output: Any, anchors: Any, weight: float = 1.0) -> Tensor:
    """lambda times the distance of representations to the global prototypes of their classes (equation 7), where
    there are any; counts my own ones for the next exchange (equation 3)."""
    z, y, common = model.head_input, batch.y, anchors["common"]
    with torch.no_grad():
        model.sums.index_add_(0, y, z)
        model.counts.index_add_(0, y, torch.ones(len(y)))
    known = common.counts[y] > 0
    prototypes = common.sums[y] / common.counts[y].clamp(min=1e-6)[:, None]
    distances: Tensor = (z - prototypes).square().sum(1) * known
    return weight * distances.mean()


PROTOTYPES: dict[str, Any] = {
    "penalties": {"fedproto": fedproto},
    "private": ("body*", "head*"),
    "shared": ("sums", "counts"),
}


def test_fedproto_exchanges_prototypes_only_and_pulls_representations_to_the_common_ones() -> None:
    me = learner(PrototypeNet, task_options=PROTOTYPES, lr=0.05)
    assert {entry.name for entry in me.layout.entries} == {"sums", "counts"}
    nothing = me.fresh(0)
    cell = StateCell(me.start(0))
    mine = me.train(nothing, seed=1, penalty="fedproto", anchors={"common": nothing}, state=cell)
    tensors = me.tensors(mine)
    assert tensors["counts"].sum() == 40  # one epoch
    target = np.full((CLASSES, 5), 0.5, np.float32)
    goal = me.from_tensors({"sums": target * 10, "counts": np.full(CLASSES, 10.0, np.float32)})

    def distance(weight: float) -> float:
        own = StateCell(cell.state)
        asked: dict[str, Any] = {"penalty": "fedproto", "anchors": {"common": goal}, "knobs": {"weight": weight}}
        found = me.tensors(me.train(nothing, seed=2, epochs=8, state=own, **asked))
        last = me.tensors(me.train(nothing, seed=2, epochs=1, lr=1e-9, state=own, **asked))
        assert found["counts"].sum() == 8 * 40
        return float(np.abs(last["sums"] / last["counts"][:, None] - target).mean())

    assert distance(1.0) < 0.5 * distance(0.0)


def test_the_average_of_sums_and_counts_is_fedprotos_weighted_mean_of_prototypes() -> None:
    """Equation 6: prototypes are weighted by the number of samples of the class at each client."""
    me = learner(PrototypeNet, task_options=PROTOTYPES)
    rng = np.random.default_rng(0)
    counts = [rng.integers(1, 9, CLASSES).astype(np.float32) for _ in range(3)]
    prototypes = [rng.normal(size=(CLASSES, 5)).astype(np.float32) for _ in range(3)]
    models = [
        me.from_tensors({"sums": p * n[:, None], "counts": n}) for p, n in zip(prototypes, counts, strict=True)
    ]
    mean = me.tensors(Model(me.layout, np.mean([m.vector for m in models], axis=0, dtype=np.float32)))
    weighted = np.sum([p * n[:, None] for p, n in zip(prototypes, counts, strict=True)], axis=0)
    expected = weighted / np.sum(counts, axis=0)[:, None]
    np.testing.assert_allclose(mean["sums"] / mean["counts"][:, None], expected, rtol=1e-5)
