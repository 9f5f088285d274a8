"""A task's own training loop, and the adapters for Lightning and transformers."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning import warn_once
from pfl_node.learning.fit_context import Work
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data, Task
from pfl_node.learning.trainer import Stopped
from pfl_node.model import Model, StateCell
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import CLASSES, learner, plain, task, with_batch_norm

pytestmark = pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns


def sgd(model: nn.Module, work: Work) -> None:
    """What the built-in loop does."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=work.lr)
    for batch in work.batches():
        optimizer.zero_grad()  # drops the gradients, which are views of the workspace's
        loss = work.loss(model(batch.x), batch.y) + (work.proximal() if work.prox else 0.0)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    work.state["rounds"] = work.state.get("rounds", 0) + 1
    work.state["last"] = torch.tensor([float(work.round)])


@pytest.mark.parametrize("only", [None, "head", "core"])
@pytest.mark.parametrize("prox", [0.0, 0.5])
@pytest.mark.parametrize("make", [plain, with_batch_norm])
def test_a_loop_of_the_task_does_what_the_built_in_loop_does(make: Any, only: Any, prox: float) -> None:
    own, built_in = learner(make, task_options={"fit": sgd}, lr=0.1), learner(make, lr=0.1)
    start, anchor = own.fresh(0), own.fresh(5)
    options: dict[str, Any] = {"seed": 3, "only": only, "prox": prox, "anchor": anchor, "epochs": 2}
    mine = own.train(start, state=StateCell(own.start(0)), **options)
    np.testing.assert_allclose(mine.vector, built_in.train(start, **options).vector, atol=1e-5)
    again = built_in.train(start, **options)  # the module is shared: it must work as before
    np.testing.assert_allclose(again.vector, mine.vector, atol=1e-5)


def test_what_a_loop_keeps_goes_from_round_to_round_in_the_local_state() -> None:
    me = learner(task_options={"fit": sgd})
    cell = StateCell(me.start(0))
    model = me.train(me.fresh(0), seed=1, round=0, state=cell)
    me.train(model, seed=2, round=1, state=cell)
    assert cell.state.facts == {"fit/rounds": 2}
    assert cell.state.tensors["fit/last"].tolist() == [1.0]
    assert me.stateful


def test_what_a_loop_keeps_belongs_to_one_slot() -> None:
    me = learner(task_options={"fit": sgd})
    cell = StateCell(me.start(0))
    for slot in (0, 1, 1):
        me.train(me.fresh(0), seed=1, slot=slot, state=cell)
    assert cell.state.facts == {"fit/rounds": 1, "fit.1/rounds": 2}


def test_a_loop_is_called_between_batches_and_ends_when_the_node_stops() -> None:
    me, calls = learner(task_options={"fit": sgd}), []

    def between() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        me.train(me.fresh(0), seed=1, state=StateCell(me.start(0)), between=between)
    start = me.fresh(0)
    assert me.train(start, seed=1, state=StateCell(me.start(0))) != start


def test_a_loop_may_replace_and_move_the_parameters() -> None:
    def halved(model: nn.Module, work: Work) -> None:
        for param in model.parameters():
            param.data = param.data.double() * 0.5
        model.trainer = object()  # type: ignore[assignment]

    me = learner(task_options={"fit": halved})
    start = me.fresh(0)
    assert me.train(start, seed=1, state=StateCell(me.start(0))).vector == pytest.approx(start.vector / 2)
    with me._pool.borrow() as space:
        assert all(p.dtype == torch.float32 for p in space.module.parameters())
        assert not hasattr(space.module, "trainer")


def test_a_loop_may_keep_the_state_of_its_optimizer() -> None:
    seen: list[Any] = []

    def fit(model: nn.Module, work: Work) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=work.lr)
        if "optimizer" in work.state:
            optimizer.load_state_dict(work.state["optimizer"])
            seen.append(deepcopy(work.state["optimizer"]))
        for batch in work.batches():
            optimizer.zero_grad()
            work.loss(model(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        seen.append(deepcopy(optimizer.state_dict()))
        work.state["optimizer"] = optimizer.state_dict()
        work.state["best"] = np.float32(0.5)

    me = learner(task_options={"fit": fit})
    cell = StateCell(me.start(0))
    me.train(me.fresh(0), seed=1, state=cell)
    json.dumps(dict(cell.state.facts))  # goes into a checkpoint
    me.train(me.fresh(0), seed=2, state=cell)
    kept, found = seen[0]["state"], seen[1]["state"]
    assert kept.keys() == found.keys() == set(range(len(kept)))
    assert all(torch.equal(kept[n][name], found[n][name]) for n in kept for name in kept[n])
    assert cell.state.facts["fit/best"] == 0.5


@pytest.mark.parametrize(
    ("value", "said"), [([object()], r"\['a'\]\[0\] is of type object"), ({(1, 2): 3}, "tuple")]
)
def test_a_value_within_another_that_cannot_be_kept_is_named(value: Any, said: str) -> None:
    def fit(model: nn.Module, work: Work) -> None:
        work.state["a"] = value

    me = learner(task_options={"fit": fit})
    with pytest.raises(TaskError, match=said):
        me.train(me.fresh(0), seed=1, state=StateCell(me.start(0)))


def test_a_loop_with_other_arguments_is_refused_before_training() -> None:
    with pytest.raises(TaskError, match=r"fit\(model\) cannot be called as fit\(model, work\)"):
        learner(task_options={"fit": lambda model: None})


def test_a_value_that_cannot_be_kept_is_named() -> None:
    def keeps_object(model: nn.Module, work: Work) -> None:
        work.state["what"] = object()

    me = learner(task_options={"fit": keeps_object})
    with pytest.raises(TaskError, match=r"work.state\['what'\] is of type object"):
        me.train(me.fresh(0), seed=1, state=StateCell(me.start(0)))


def test_private_training_refuses_a_loop_of_the_task() -> None:
    with pytest.raises(ConfigError, match="cannot protect a training loop"):
        Learner(task(fit=sgd), TrainSettings(), "cpu", PrivacySettings(dp=True))


def test_an_unknown_adapter_is_named() -> None:
    with pytest.raises(TaskError, match="did you mean 'lightning'"):
        learner(task_options={"fit": "lightening"})


# -- Lightning -------------------------------------------------------------------------------------------------


def lit(**knobs: Any) -> Any:
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            loss = cross_entropy(self(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    return Lit()


def test_a_lightning_module_trains_with_its_own_step_optimizer_and_schedule() -> None:
    me = learner(lit, task_options={"fit": "lightning"}, batch=8)
    cell, model = StateCell(me.start(0)), me.fresh(0)
    before = me.score([model])[0].loss
    for round in range(3):
        model = me.train(model, seed=round, round=round, state=cell)
    assert me.score([model])[0].loss < before
    (group,) = cell.state.facts["fit/optimizer0.groups"]
    assert group["lr"] == pytest.approx(0.05 * 0.5**3)  # the schedule spans the rounds
    assert cell.state.tensors["fit/optimizer0.0.step"] == 3 * 5  # and so does the optimizer


def test_lightnings_optimizer_continues_where_the_state_says() -> None:
    me = learner(lit, task_options={"fit": "lightning"}, batch=8)
    cell = StateCell(me.start(0))
    first = me.train(me.fresh(0), seed=0, state=cell)
    kept = cell.state
    continued = me.train(first, seed=1, state=StateCell(kept))
    anew = me.train(first, seed=1, state=StateCell(me.start(0)))
    assert continued == me.train(first, seed=1, state=StateCell(kept))
    assert continued != anew


def test_an_ignored_training_step_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "said", set())
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):  # nodes
            learner(lit)
    assert [line["event"] for line in lines if "training_step" in line["event"]] == [
        "the model has a training_step, which the built-in loop does not call: return fit = 'lightning'"
    ]
    with structlog.testing.capture_logs() as lines:
        learner(lit, task_options={"fit": "lightning"})
    assert lines == []


def test_another_module_does_not_fit_lightning() -> None:
    pytest.importorskip("lightning")
    me = learner(task_options={"fit": "lightning"})
    with pytest.raises(TaskError, match="is a Sequential, not a LightningModule"):
        me.train(me.fresh(0), seed=1, state=StateCell(me.start(0)))


# -- transformers and PEFT -------------------------------------------------------------------------------------


def tiny_gpt2() -> Any:
    """GPT-2 with random weights and LoRA; nothing is downloaded."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {"vocab_size": 31, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)


def lm_loss(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output["logits"][:, :-1].transpose(1, 2), y[:, 1:])


def test_lora_trains_with_the_trainer_of_transformers() -> None:
    tokens = torch.randint(31, (24, 12), generator=torch.Generator().manual_seed(0))
    data: Any = Data({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, tokens)
    made = Task("lm", tiny_gpt2, data, data, loss=lm_loss, fit="transformers")
    me = Learner(made, TrainSettings(lr=0.01, batch=8), "cpu")
    assert all("lora" in entry.name for entry in me.layout.entries)
    cell, model = StateCell(me.start(0)), me.fresh(0)
    before = me.score([model], state=cell)[0].loss
    for round in range(3):
        model = me.train(model, seed=round, round=round, state=cell)
    assert me.score([model], state=cell)[0].loss < before
    assert cell.state.tensors["fit/optimizer0.0.step"] == 3 * 3
    strong = Model(model.layout, np.full_like(model.vector, 1e3))  # AdamW's first step is lr against its sign
    corrected = me.train(model, seed=0, steps=1, correction=strong, state=StateCell(me.start(0)))
    assert np.allclose(model.vector - corrected.vector, 0.01, rtol=0.1)
