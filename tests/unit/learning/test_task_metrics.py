from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import structlog
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning import warn_once
from pfl_node.learning.learner import Learner
from pfl_node.learning.personal_model import fill
from pfl_node.learning.task import Data, Task
from pfl_node.settings import TrainSettings
from pfl_node.types import ACCURACY, LOSS, Headline
from tests.unit.learning.nets import learner, task

torchmetrics = pytest.importorskip("torchmetrics")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "said", set())


def logit() -> nn.Module:
    return nn.Linear(4, 1)


def bce(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), y.float())


def imbalanced(n: int = 60) -> Data:
    chance = torch.Generator().manual_seed(0)
    y = (torch.arange(n) % 6 == 0).long()
    return Data(torch.randn(n, 4, generator=chance) + y.view(-1, 1), y)


def auc(outputs: Tensor, y: Tensor) -> float:
    return float(roc_auc_score(y.numpy(), outputs.squeeze(1).numpy()))


def binary(**options: Any) -> Learner:
    return learner(logit, imbalanced(), {"loss": bce, **options}, lr=0.5)


def test_a_function_gets_the_outputs_and_labels_of_the_whole_split() -> None:
    seen: list[tuple[tuple[int, ...], int]] = []

    def count(outputs: Tensor, y: Tensor) -> float:
        seen.append((tuple(outputs.shape), len(y)))
        return 0.5

    me = binary(metrics={"count": count})
    seen.clear()  # the check with a few samples
    (found,) = me.score([me.fresh(0)], split="val")
    assert seen == [((60, 1), 60)]
    assert found.metrics == {"count": 0.5}
    assert found.score is None  # the task names no best metric


def test_several_batches_are_one_split_for_a_metric() -> None:
    me = binary(metrics={"auc": auc}, best="auc")
    model = me.train(me.fresh(0), seed=1)
    (whole,) = me.score([model], split="val")
    me._eval_batch = 7
    (pieces,) = me.score([model], split="val")
    assert pieces.metrics["auc"] == whole.metrics["auc"] == whole.score == whole.quality


def test_torchmetrics_by_name_and_as_an_instance_give_what_scikit_learn_gives() -> None:
    given = {"auc": auc, "named": "AUROC", "made": torchmetrics.AUROC(task="binary")}
    me = binary(metrics=given)
    (found,) = me.score([me.train(me.fresh(0), seed=1)], split="val")
    assert found.metrics["named"] == pytest.approx(found.metrics["auc"])
    assert found.metrics["made"] == pytest.approx(found.metrics["auc"])


def test_torchmetrics_is_told_the_number_of_classes() -> None:
    me = learner(task_options={"metrics": ["F1Score", "Accuracy"], "best": "F1Score"})
    (found,) = me.score([me.fresh(0)], split="val")
    assert found.metrics["Accuracy"] == pytest.approx(found.accuracy)
    assert me.headline == Headline("F1Score", higher=True)


@pytest.mark.parametrize(
    ("best", "headline"),
    [
        (None, LOSS),  # one logit is not a class score
        ("auc", Headline("auc", higher=True)),
        ("min:auc", Headline("auc", higher=False)),
        ("loss", LOSS),
        ("mae", Headline("mae", higher=False)),
    ],
)
def test_the_headline_follows_from_best(best: str | None, headline: Headline) -> None:
    assert binary(metrics={"auc": auc, "mae": lambda o, y: 1.0}, best=best).headline == headline


def test_lower_is_better_makes_the_score_negative() -> None:
    me = binary(metrics={"mae": lambda o, y: 3.0}, best="mae")
    assert me.score([me.fresh(0)])[0].score == -3.0


def test_a_classifier_is_judged_by_its_accuracy_and_has_no_metrics() -> None:
    me = learner()
    (found,) = me.score([me.fresh(0)])
    assert me.headline == ACCURACY
    assert (found.metrics, found.score, found.quality) == ({}, None, found.accuracy)


def test_a_language_model_has_a_perplexity_and_no_accuracy() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 11)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).transpose(1, 2)  # type: ignore[no-any-return]

    x = torch.randint(11, (20, 6), generator=torch.Generator().manual_seed(0))
    me = Learner(task(Tokens, Data(x[:, :-1], x[:, 1:])), TrainSettings(), "cpu")
    (found,) = me.score([me.fresh(0)], split="val")
    assert me.headline == Headline("perplexity", higher=False)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(found.loss))
    assert math.isnan(found.accuracy)
    assert found.figures().keys() == {"loss", "perplexity"}


def test_class_scores_in_the_last_dimension_show_the_loss() -> None:
    tokens = torch.randint(0, 7, (20, 5))
    own = {"loss": lambda output, y: nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())}
    me = learner(
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)), Data(tokens[:, :-1], tokens[:, 1:]), own
    )
    (found,) = me.score([me.fresh(0)])
    assert me.headline == LOSS
    assert found.figures().keys() == {"loss"}


def test_regression_shows_its_loss_and_no_accuracy() -> None:
    x = torch.randn(20, 4)
    me = learner(logit, Data(x, x.sum(1, keepdim=True)), {"loss": nn.MSELoss()})
    (found,) = me.score([me.fresh(0)])
    assert me.headline == LOSS
    assert found.figures().keys() == {"loss"}
    assert found.quality == -found.loss


def test_a_metric_that_is_undefined_for_this_data_is_nan_and_the_node_goes_on() -> None:
    def undefined(outputs: Tensor, y: Tensor) -> float:
        raise ValueError("only one class present")

    me = binary(metrics={"auc": undefined}, best="auc")
    (found,) = me.score([me.fresh(0)])
    assert math.isnan(found.metrics["auc"])
    assert found.score is None


def broken(outputs: Tensor, y: Tensor) -> float:
    return outputs.no_such_thing  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metrics": {"auc": broken}}, "metric 'auc' fails: AttributeError"),
        ({"metrics": {"auc": lambda o, y: o}}, "metric 'auc' fails"),
        ({"metrics": {"auc": "AUROCC"}}, "torchmetrics has no 'AUROCC'; did you mean 'AUROC'?"),
        ({"metrics": {"auc": auc}, "best": "acu"}, "best = 'acu' is not a metric; did you mean 'auc'?"),
        ({"metrics": {"auc": auc}, "best": "high:auc"}, "write 'auc', 'min:auc' or 'max:auc'"),
        ({"metrics": {"auc": 3}}, "metric 'auc' is of type int: give a function"),
        ({"metrics": {"loss": auc}}, "'loss' is not a valid name of a metric"),
        ({"metrics": 3}, "metrics is of type int"),
    ],
)
def test_a_wrong_metric_is_one_line_before_training(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError) as raised:
        binary(**options)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_equal_models_are_evaluated_once_with_the_same_metrics_only() -> None:
    data = imbalanced()
    one = Learner(
        Task("a", logit, data, data, data, loss=bce, metrics={"m": lambda o, y: 1.0}), TrainSettings(), "cpu"
    )
    two = Learner(
        Task("b", logit, data, data, data, loss=bce, metrics={"m": lambda o, y: 2.0}), TrainSettings(), "cpu"
    )
    model = one.fresh(0)
    assert one.score([model], split="test")[0].metrics == {"m": 1.0}
    assert two.score([model], split="test")[0].metrics == {"m": 2.0}


def test_labels_of_floats_are_classes_for_torchmetrics() -> None:
    x, y = imbalanced()
    loss = nn.BCEWithLogitsLoss()
    me = learner(
        logit, Data(x, y.float()[:, None]), {"loss": loss, "metrics": ["AUROC", "F1Score"], "best": "AUROC"}
    )
    model = me.fresh(0)
    (found,) = me.score([model])
    module = fill(me.module(), me.tensors(model))
    assert found.metrics["AUROC"] == pytest.approx(auc(module(x).detach(), y))
    assert found.metrics["F1Score"] >= 0.0


def test_several_labels_for_each_sample_are_found_by_torchmetrics() -> None:
    x, _ = imbalanced()
    y = (x[:, :3] > 0.5).float()
    given = torchmetrics.classification.MultilabelAUROC(num_labels=3)
    options = {"loss": nn.BCEWithLogitsLoss(), "metrics": {"auc": "AUROC", "given": given}, "best": "auc"}
    me = learner(lambda: nn.Linear(4, 3), Data(x, y), options)
    model = me.fresh(0)
    (found,) = me.score([model])
    scores = fill(me.module(), me.tensors(model))(x).detach()
    expected = sum(roc_auc_score(y[:, k], scores[:, k]) for k in range(3)) / 3
    assert found.metrics == {"auc": pytest.approx(expected), "given": pytest.approx(expected)}


def test_a_metric_that_is_nan_or_warns_is_logged_once_for_all_nodes() -> None:
    def undefined(outputs: Tensor, y: Tensor) -> float:
        warnings.warn("only one class present", UserWarning, stacklevel=1)
        return math.nan

    def doubtful(outputs: Tensor, y: Tensor) -> float:
        warnings.warn("no positive sample", UserWarning, stacklevel=1)
        return 0.5

    with structlog.testing.capture_logs() as lines:
        nodes = [binary(metrics={"auc": undefined, "ap": doubtful}, best="auc") for _ in range(2)]
        assert not lines  # the few samples of the check may lack a class
        for node in nodes:
            (found,) = node.score([node.fresh(0)])
            assert math.isnan(found.metrics["auc"])
            assert found.metrics["ap"] == 0.5
    assert [(line["event"], line["error"]) for line in lines] == [
        ("a metric cannot be computed and is left out", "ValueError: only one class present"),
        ("a metric is doubtful", "UserWarning: no positive sample"),
    ]
