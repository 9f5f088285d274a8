"""Tasks with one mistake each, as a user makes them; `test_task_mistakes.py` runs them through the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

N = 40


def x(*shape: int) -> Tensor:
    return torch.randn(N, *shape or (4,), generator=torch.Generator().manual_seed(0))


def y(classes: int = 3) -> Tensor:
    return torch.arange(N) % classes


def mlp(inputs: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


class Rows(Dataset[Any]):
    """Any rows as a Dataset."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        if isinstance(row, Exception):
            raise row
        return row


class Two(nn.Module):
    """Takes two named inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.net(torch.cat([image, table], 1))  # type: ignore[no-any-return]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(x(), y(), strict=True)


def hugging_face_splits() -> dict[str, Any]:
    import datasets

    rows = datasets.Dataset.from_dict({"x": x().tolist(), "label": y().tolist()})
    return {"model": mlp, "train": datasets.DatasetDict({"train": rows})}


def columns_that_the_model_does_not_name() -> dict[str, Any]:
    return {"model": mlp, "train": Rows([{"age": 1.0, "size": 2.0, "label": i % 3} for i in range(N)])}


def one_of_two_inputs() -> dict[str, Any]:
    return {"model": Two, "train": Rows([{"image": row, "label": 0} for row in x()])}


def one_logit() -> dict[str, Any]:
    return {"model": mlp(outputs=1), "train": (x(), y(2))}


def nan_in_a_column() -> dict[str, Any]:
    table = pd.DataFrame(x().numpy(), columns=["age", "height", "weight", "pulse"])
    table.loc[17, "weight"] = np.nan
    return {"model": mlp, "train": (table, y())}


def nan_in_an_image() -> dict[str, Any]:
    images = x(3, 8, 8)
    images[23, 1, 2, 3] = float("inf")
    return {"model": nn.Conv2d(3, 3, 8), "train": TensorDataset(images, y())}


def label_beyond_the_outputs() -> dict[str, Any]:
    return {"model": mlp(outputs=3), "train": (x(), y(4))}


def labels_from_one() -> dict[str, Any]:
    return {"model": mlp(outputs=3), "train": (x(), y(3) + 1)}


def float_labels() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y().float())}


def labels_in_a_column() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()[:, None])}


def too_many_features() -> dict[str, Any]:
    return {"model": mlp(inputs=5), "train": (x(), y())}


def no_flatten() -> dict[str, Any]:
    return {"model": mlp(inputs=64), "train": (x(8, 8), y())}


def channels_at_the_end() -> dict[str, Any]:
    return {"model": nn.Conv2d(3, 3, 8), "train": (x(8, 8, 3), y())}


def no_channel() -> dict[str, Any]:
    return {"model": nn.Conv2d(1, 3, 8), "train": (x(8, 8), y())}


def empty() -> dict[str, Any]:
    return {"model": mlp, "train": Rows([])}


def collate_fails() -> dict[str, Any]:
    def pad(rows: list[Any]) -> Any:
        return torch.stack([row["tokens"] for row in rows])

    return {"model": mlp, "train": Rows(list(zip(x(), y(), strict=True))), "collate": pad}


def different_shapes() -> dict[str, Any]:
    return {"model": mlp, "train": Rows([(torch.ones(3 + (i > 20)), 0) for i in range(N)])}


def a_sample_fails() -> dict[str, Any]:
    rows: list[Any] = list(zip(x(), y(), strict=True))
    rows[-1] = FileNotFoundError("no file scan-39.dcm")
    return {"model": mlp, "train": Rows(rows)}


def iterable() -> dict[str, Any]:
    return {"model": mlp, "train": Stream()}


def loader() -> dict[str, Any]:
    return {"model": mlp, "train": DataLoader(TensorDataset(x(), y()), batch_size=4)}


def words_as_labels() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), np.array(["cat", "dog"] * 20))}


def words_in_a_table() -> dict[str, Any]:
    table = pd.DataFrame({"age": range(N), "sex": ["f", "m"] * 20})
    return {"model": mlp, "train": (table, y())}


def bytes_as_pixels() -> dict[str, Any]:
    return {"model": nn.Conv2d(3, 3, 8), "train": (x(3, 8, 8).to(torch.uint8), y())}


def pictures() -> dict[str, Any]:
    from PIL import Image

    return {"model": mlp, "train": Rows([(Image.new("RGB", (8, 8)), 0)] * N)}


def tokens_as_floats() -> dict[str, Any]:
    return {"model": nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 3)), "train": (x(), y())}


def unknown_token() -> dict[str, Any]:
    words = torch.full((N, 4), 12)
    return {"model": nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 3)), "train": (words, y())}


def scores_in_the_last_dimension() -> dict[str, Any]:
    words = torch.arange(N * 6).view(N, 6) % 10
    return {"model": nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10)), "train": (words, words)}


def loss_class() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()), "loss": nn.CrossEntropyLoss}


def loss_is_a_number() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()), "loss": lambda output, _: output.mean().item()}


def whole_labels_for_bce() -> dict[str, Any]:
    return {"model": mlp(outputs=1), "train": (x(), y(2)[:, None]), "loss": nn.BCEWithLogitsLoss()}


def no_labels() -> dict[str, Any]:
    return {"model": mlp, "train": TensorDataset(x())}


def different_lengths() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()[:30])}


def misspelt_key() -> dict[str, Any]:
    return {"model": mlp, "trian": (x(), y())}


class Wrapped(nn.Module):
    """A layer whose forward changes its output."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.change = mlp(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


def detached_outputs() -> dict[str, Any]:
    return {"model": Wrapped(lambda scores: scores.detach()), "train": (x(), y())}


def classes_instead_of_scores() -> dict[str, Any]:
    return {"model": Wrapped(lambda scores: scores.argmax(1)), "train": (x(), y())}


def forward_without_return() -> dict[str, Any]:
    return {"model": Wrapped(lambda _: None), "train": (x(), y())}


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Any:
        return self.out(x.double())


def cast_in_forward() -> dict[str, Any]:
    return {"model": Doubled, "train": (x(), y())}


def loss_with_swapped_arguments() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()), "loss": lambda y, output: nn.functional.cross_entropy(output, y)}


def one_hot_labels() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), nn.functional.one_hot(y()))}


def dataset_class() -> dict[str, Any]:
    return {"model": mlp, "train": TensorDataset}


def metrics_without_names() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()), "metrics": [lambda outputs, y: 1.0]}


def no_return() -> None:
    mlp()


async def asynchronous() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y())}


def model_with_arguments() -> dict[str, Any]:
    return {"model": Wrapped, "train": (x(), y())}


def val_of_another_width() -> dict[str, Any]:
    return {"model": mlp, "train": (x(), y()), "val": (x(3), y())}


def nothing_to_train() -> dict[str, Any]:
    return {"model": mlp().requires_grad_(False), "train": (x(), y())}


def text_as_an_input() -> dict[str, Any]:
    rows = [{"image": row, "sex": "f", "label": 0} for row in x()]
    return {"model": mlp, "train": Rows(rows), "inputs": ["image", "sex"]}
