"""Samples that are not one tensor and one label: tuples, dicts, columns, no label, custom batches."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from pfl_node.errors import TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.samples import StackedSamples
from pfl_node.learning.task import Task
from pfl_node.settings import DataSettings, TrainSettings

N, CLASSES = 36, 3
Y = torch.arange(N) % CLASSES
IMAGE = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)) + 2.0 * Y[:, None]
TABLE = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.out(torch.cat([image, table], 1))  # type: ignore[no-any-return]


def one() -> nn.Module:
    return nn.Linear(4, CLASSES)


class Rows:
    """A dataset that inherits from nothing."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def learner(model: Callable[[], nn.Module], train: Any, memory: Any = "auto", **more: Any) -> Learner:
    task = Task("mine", model, train, **{"val": train, **more})
    return Learner(task, TrainSettings(epochs=4, lr=0.1), "cpu", data=DataSettings(memory=memory))


def trained(me: Learner) -> bytes:
    return me.train(me.fresh(0), seed=1).vector.tobytes()


TWO_INPUTS: list[Any] = [
    ((IMAGE, TABLE), Y),
    ({"image": IMAGE, "table": TABLE}, Y),
    {"image": IMAGE.numpy(), "table": TABLE.numpy(), "label": Y.numpy()},
    Rows([((image, table), int(y)) for image, table, y in zip(IMAGE, TABLE, Y, strict=True)]),
    Rows(list(zip(IMAGE, TABLE, Y, strict=True))),
    Rows([{"image": i, "table": t, "y": y, "file": "a.png"} for i, t, y in zip(IMAGE, TABLE, Y, strict=True)]),
    [{"table": t, "image": i, "label": int(y)} for i, t, y in zip(IMAGE, TABLE, Y, strict=True)],
    datasets.Dataset.from_dict({"image": IMAGE.tolist(), "table": TABLE.tolist(), "label": Y.tolist()}),
    Rows([({"image": i, "table": t, "age": 3.0}, y) for i, t, y in zip(IMAGE, TABLE, Y, strict=True)]),
    Rows([({"image": i, "table": t, "file": "a.png"}, y) for i, t, y in zip(IMAGE, TABLE, Y, strict=True)]),
    ({"image": IMAGE, "table": TABLE, "file": np.array(["a.png"] * N)}, Y),
    {"image": IMAGE, "table": TABLE, "file": ["a.png", None] * (N // 2), "label": Y},
    {"image": IMAGE, "table": TABLE, "file": pandas.Series(["a.png"] * N), "label": Y},
]


@pytest.mark.parametrize("train", TWO_INPUTS, ids=lambda data: type(data).__name__)
@pytest.mark.parametrize("memory", ["always", "never"])
def test_a_model_may_take_several_inputs_from_data_of_any_structure(train: Any, memory: str) -> None:
    expected = trained(learner(Two, ((IMAGE, TABLE), Y)))
    assert trained(learner(Two, train, memory)) == expected


@pytest.mark.parametrize("kind", ["plain", "torch", "numpy"])
def test_a_hugging_face_dataset_is_read_in_any_format_and_its_text_columns_are_left_out(kind: str) -> None:
    rows = {"vector": IMAGE.tolist(), "text": ["a"] * N, "label": Y.tolist()}
    data = datasets.Dataset.from_dict(rows)
    data = data if kind == "plain" else data.with_format(kind)
    expected = trained(learner(one, (IMAGE, Y)))
    assert trained(learner(one, data)) == expected
    assert trained(learner(one, data, "never")) == expected


def test_a_hugging_face_transform_with_randomness_is_applied_anew() -> None:
    seen: list[bytes] = []

    def noisy(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        batch["vector"] = [np.asarray(v) + np.random.standard_normal(4) for v in batch["vector"]]
        seen.extend(v.tobytes() for v in batch["vector"])
        return batch

    data = datasets.Dataset.from_dict({"vector": IMAGE.tolist(), "label": Y.tolist()}).with_transform(noisy)
    me = learner(one, data, val=(IMAGE, Y))
    seen.clear()
    trained(me)
    assert len(set(seen)) == len(seen) == 4 * N


def test_a_task_names_its_columns() -> None:
    rows = [{"a": i, "b": t, "kind": y, "y": 0} for i, t, y in zip(IMAGE, TABLE, Y, strict=True)]
    me = learner(one, Rows(rows), inputs="a", target="kind")
    assert trained(me) == trained(learner(one, (IMAGE, Y)))
    with pytest.raises(TaskError, match="the train data has no column 'kinds'; did you mean 'kind'"):
        learner(one, Rows(rows), inputs="a", target="kinds")


def test_without_labels_the_loss_receives_the_inputs() -> None:
    def rebuilt(output: Tensor, x: Tensor) -> Tensor:
        return mse_loss(output, x)

    me = learner(lambda: nn.Linear(4, 4), Rows([(x,) for x in IMAGE]), loss=rebuilt)
    start = me.fresh(0)
    model = me.train(start, seed=0)
    assert me.score([model])[0].loss < me.score([start])[0].loss
    assert np.isnan(me.score([model])[0].accuracy)


def test_labels_may_have_a_structure() -> None:
    def both(output: Tensor, y: dict[str, Tensor]) -> Tensor:
        return cross_entropy(output, y["kind"]) + mse_loss(output[:, 0], y["size"])

    rows = [{"x": x, "kind": y, "size": 1.0} for x, y in zip(IMAGE, Y, strict=True)]
    me = learner(one, Rows(rows), loss=both, inputs="x", target=("kind", "size"))
    start = me.fresh(0)
    assert me.score([me.train(start, seed=0, lr=0.01)])[0].loss < me.score([start])[0].loss


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=0)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        return self.out((self.table(words) * mask[..., None]).sum(1))  # type: ignore[no-any-return]


def padded(rows: list[tuple[list[int], int]]) -> dict[str, Any]:
    width = max(len(words) for words, _ in rows)
    words = torch.tensor([line + [0] * (width - len(line)) for line, _ in rows])
    return {"words": words, "mask": (words > 0).float(), "label": torch.tensor([y for _, y in rows])}


@pytest.mark.parametrize("memory", ["always", "never"])
def test_a_collate_of_the_task_makes_the_batches(memory: str) -> None:
    lines = [([1 + y, 2 + y] + [3 + y] * (i % 4), y) for i, y in enumerate(Y.tolist())]
    me = learner(Words, Rows(lines), memory, collate=padded, target="label")
    start = me.fresh(0)
    model = me.train(start, seed=0)
    assert me.score([model])[0].accuracy > me.score([start])[0].accuracy
    assert me.confusion(model, "val") is not None
    assert trained(me) == trained(learner(Words, Rows(lines), collate=padded, target="label"))


class OwnLoss(nn.Module):
    """Returns scores and, if it gets labels, its loss, like the models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
        logits = self.out(x)
        return SimpleNamespace(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


@pytest.mark.parametrize("label", ["label", "labels"])
def test_a_model_that_computes_its_loss_is_scored_by_its_logits(label: str) -> None:
    me = learner(OwnLoss, Rows([{"x": x, label: y} for x, y in zip(IMAGE, Y, strict=True)]))
    plain = learner(one, (IMAGE, Y))
    model = me.train(me.fresh(0), seed=1)
    assert model.vector.tobytes() == trained(plain)
    assert me.score([model]) == plain.score([plain.train(plain.fresh(0), seed=1)])
    np.testing.assert_allclose(me.each(model)[0].mean(), me.score([model])[0].loss, rtol=1e-5)


def test_arrays_are_kept_without_a_copy_in_any_structure() -> None:
    samples = learner(Two, {"image": IMAGE, "table": TABLE, "label": Y})._splits["train"]
    assert isinstance(samples, StackedSamples)
    assert samples.x["image"].data_ptr() == IMAGE.data_ptr()


def test_a_collate_that_makes_no_batch_is_refused() -> None:
    rows = [(torch.zeros(4), n % 2) for n in range(10)]
    with pytest.raises(TaskError, match=r"collate made x .* of \d+ samples: return the form of a row"):
        learner(lambda: nn.Linear(4, 2), rows, collate=lambda rows: rows)


def test_rows_that_are_none_are_refused() -> None:
    with pytest.raises(TaskError, match=r"sample 0 is empty or None: return \(x, y\)"):
        learner(lambda: nn.Linear(4, 2), Rows([None] * 10))


def test_a_table_of_pandas_alone_is_refused_with_an_example() -> None:
    table = pandas.DataFrame({"a": [0.5] * 10, "label": [0, 1] * 5})
    with pytest.raises(TaskError, match=r"is a DataFrame: give \(x, y\), such as \(table\[inputs\], table"):
        learner(lambda: nn.Linear(1, 2), table)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.two = Two()

    def forward(self, views: dict[str, Any]) -> Tensor:
        assert set(views) == {"image", "more"}
        return self.two(views["image"], views["more"]["table"])  # type: ignore[no-any-return]


@pytest.mark.parametrize("memory", ["always", "never"])
def test_texts_in_nested_dicts_are_left_out(memory: str) -> None:
    pairs = list(zip(IMAGE, TABLE, Y, strict=True))
    views = [{"image": i, "scanner": "A", "more": {"table": t, "words": ["a", "b"]}} for i, t, _ in pairs]
    expected = trained(learner(Two, ((IMAGE, TABLE), Y)))
    for rows in (
        [{"views": v, "label": y} for v, y in zip(views, Y, strict=True)],
        list(zip(views, Y, strict=True)),
    ):
        named = rows if isinstance(rows[0], dict) else [({"views": v}, y) for v, y in rows]
        assert trained(learner(Nested, Rows(named), memory)) == expected


def test_a_text_that_the_task_names_as_an_input_is_refused() -> None:
    rows = Rows([{"image": image, "sex": "f", "label": 0} for image in IMAGE])
    with pytest.raises(TaskError, match="the column 'sex' is text: number the categories"):
        learner(one, rows, inputs=["image", "sex"])


@pytest.mark.parametrize("memory", ["always", "never"])
@pytest.mark.parametrize("make", [lambda row: row, lambda row: (row, 1)])
def test_a_row_without_a_column_is_named(memory: str, make: Callable[[Any], Any]) -> None:
    rows: list[Any] = [make({"image": i, "table": t, "label": 1}) for i, t in zip(IMAGE, TABLE, strict=True)]
    rows[20] = make({"image": IMAGE[20], "label": 1})
    with pytest.raises(TaskError, match=r"sample 20.* has no 'table', but the first sample"):
        trained(learner(Two, Rows(rows), memory))
