"""Two inputs: a picture and a row of a table. The model's `forward(image, table)` gets both."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


def skin(index: int | None = None, seed: int = 0) -> dict[str, object]:
    """Is the mole harmless? Neither the picture nor the patient's data is enough alone."""
    return {
        "model": ImageAndTable,
        "train": Moles(160, [seed, index or 0, 0]),
        "test": Moles(80, [seed, index or 0, 1]),
        "metrics": {"recall": recall},
        "train_defaults": {"optimizer": "adam", "lr": 0.01, "batch": 16, "epochs": 2},
    }


def recall(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of harmful moles that are found."""
    return (outputs.argmax(1)[y == 1] == 1).float().mean()


class Moles(Dataset[tuple[dict[str, Tensor], int]]):
    """A sample is ({"image": …, "table": …}, label)."""

    def __init__(self, count: int, seed: list[int]) -> None:
        rng = np.random.default_rng(seed)
        size, age = rng.uniform(2, 7, count), rng.uniform(-1, 1, count)
        row, column = np.mgrid[0:16, 0:16]
        spots = (row - 8) ** 2 + (column - 8) ** 2 < size[:, None, None] ** 2
        self.images = (spots[:, None] + rng.normal(0, 0.3, (count, 1, 16, 16))).astype("float32")
        self.tables = np.column_stack([age, rng.normal(size=count)]).astype("float32")
        self.labels = ((size - 4.5) / 2.5 + age > 0).astype(int)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> tuple[dict[str, Tensor], int]:
        sample = {"image": torch.tensor(self.images[n]), "table": torch.tensor(self.tables[n])}
        return sample, int(self.labels[n])


class ImageAndTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 8))
        self.table = nn.Linear(2, 8)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 2))

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.head(torch.cat([self.image(image), self.table(table)], 1))
