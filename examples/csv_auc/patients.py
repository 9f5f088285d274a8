"""A table with few positive cases: weighted loss, and the area under the ROC curve decides."""

import numpy as np
import torch
from torch import Tensor, nn

COLUMNS = 12


def patients(file: str = "", index: int | None = None, seed: int = 0) -> dict[str, object]:
    """Who will be readmitted? `file` is a CSV table whose last column is 0 or 1; without it, one is made up."""
    table = np.loadtxt(file, delimiter=",", skiprows=1) if file else made_up(index or 0, seed)
    x, y = table[:, :-1].astype("float32"), table[:, -1:].astype("float32")
    split = int(0.7 * len(x))
    rare = torch.tensor([(1 - y[:split].mean()) / y[:split].mean()])
    return {
        "model": lambda: nn.Sequential(nn.Linear(COLUMNS, 16), nn.ReLU(), nn.Linear(16, 1)),
        "train": (x[:split], y[:split]),
        "test": (x[split:], y[split:]),
        "loss": nn.BCEWithLogitsLoss(pos_weight=rare),
        "metrics": {"auc": auc},
        "best": "auc",
        "train_defaults": {"optimizer": "adamw", "lr": 0.01, "batch": 32},
    }


def auc(outputs: Tensor, y: Tensor) -> Tensor:
    """How often a positive case has a higher score than a negative one, over the whole split."""
    return (outputs[y == 1][:, None] > outputs[y == 0]).float().mean()


def made_up(index: int, seed: int) -> np.ndarray:
    """400 patients of this site, one in ten readmitted."""
    rng, risk = np.random.default_rng([seed, index]), np.random.default_rng(seed).normal(size=COLUMNS)
    x = rng.normal(size=(400, COLUMNS))
    score = x @ risk + rng.normal(size=400)
    return np.column_stack([x, score > np.quantile(score, 0.9)])
