"""The tasks of the benchmarks: the papers' networks on real images if available, otherwise on synthetic ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
MNIST = Path(__file__).resolve().parents[2] / "shared" / "data" / "MNIST" / "raw"


def fashion_mlp(index: int | None = None, samples: int = 512, test: int = 256) -> dict[str, Any]:
    """784-256-128-10 on `samples` images; batch 64, one epoch."""
    x, y, source = _images()
    start = (index or 0) * samples % (len(x) - samples - test)
    mine, rest = slice(start, start + samples), slice(start + samples, start + samples + test)
    return {
        "name": f"fashion_mlp ({source})",
        "model": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        ),
        "train": (x[mine], y[mine]),
        "val": (x[rest], y[rest]),
        "test": (x[rest], y[rest]),
        "train_defaults": {"batch": 64, "epochs": 1, "lr": 0.05},
    }


def lenet(seed: int = 0, index: int | None = None, samples: int = 500, test: int = 100) -> dict[str, Any]:
    """FACADE's LeNet on synthetic images of CIFAR-10's shape, 10 batches of 8 per round."""
    rng = np.random.default_rng([seed, index or 0])
    x = rng.normal(size=(samples + test, 3, 32, 32)).astype(np.float32)
    y = rng.integers(0, 10, size=samples + test)
    return {
        "name": "lenet",
        "model": facade_lenet,
        "head": "13",
        "train": (x[:samples], y[:samples]),
        "val": (x[samples:], y[samples:]),
        "test": (x[samples:], y[samples:]),
        "train_defaults": {"batch": 8, "steps": 10, "lr": 0.01},
    }


def facade_lenet() -> nn.Module:
    """89,834 parameters; the head is the last layer."""
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(a, b, 5, padding="same"), nn.GroupNorm(2, b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def _images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], str]:
    for folder, name in ((FASHION, "Fashion-MNIST"), (MNIST, "MNIST")):
        if (folder / "train-images-idx3-ubyte.gz").exists():
            x = _idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
            y = _idx(folder / "train-labels-idx1-ubyte.gz", 8)
            return (x.astype(np.float32) / 127.5 - 1), y.astype(np.int64), name
    rng = np.random.default_rng(0)
    return rng.normal(size=(20_000, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 20_000), "made images"


def _idx(path: Path, header: int) -> npt.NDArray[np.uint8]:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


def bare_steps(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, steps: int, batch: int) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(len(x))
    for i in range(steps):
        index = order[(i * batch) % (len(x) - batch + 1) :][:batch]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def bare_score(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        model.eval()
        for start in range(0, len(x), 256):
            nn.functional.cross_entropy(model(x[start : start + 256]), y[start : start + 256]).item()
