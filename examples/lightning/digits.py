"""A LightningModule: its `training_step` and its optimizer train the model, through Lightning's Trainer."""

import lightning
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def digits(index: int | None = None, nodes: int | None = None, seed: int = 0) -> dict[str, object]:
    """Handwritten digits of 8 x 8 pixels; each site has a share of them."""
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))[(index or 0) :: nodes or 4]
    x, y = (found.data[order] / 16).astype("float32"), found.target[order]
    return {
        "model": Classifier,
        "fit": "lightning",
        "train": (x[:200], y[:200]),
        "test": (x[200:400], y[200:400]),
        "train_defaults": {"batch": 16},
    }


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y, label_smoothing=0.05)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.003)
