"""Segmentation with a small U-Net, measured by the Dice coefficient."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

SIZE = 32


def cells(index: int | None = None, seed: int = 0) -> dict[str, object]:
    """Where are the cells? Each site has its own microscope, with its own brightness."""
    images, masks = drawn(48, index or 0, seed)
    return {
        "model": UNet,
        "train": (images[:32], masks[:32]),
        "test": (images[32:], masks[32:]),
        "loss": lambda outputs, y: fn.binary_cross_entropy_with_logits(outputs, y) + 1 - dice(outputs, y),
        "metrics": {"dice": lambda outputs, y: dice((outputs > 0).float(), y, hard=True)},
        "best": "dice",
        "train_defaults": {"optimizer": "adam", "lr": 0.01, "batch": 8, "epochs": 2},
    }


def dice(outputs: Tensor, y: Tensor, hard: bool = False) -> Tensor:
    p = outputs if hard else outputs.sigmoid()
    return (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = block(1, 8), block(8, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Sequential(block(16, 8), nn.Conv2d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.bottom(fn.max_pool2d(fine, 2))
        return self.out(torch.cat([fine, self.up(coarse)], 1))


def block(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU())


def drawn(count: int, index: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images with one to three round cells, and the masks of the cells."""
    rng = np.random.default_rng([seed, index])
    row, column = np.mgrid[0:SIZE, 0:SIZE]
    masks = np.zeros((count, 1, SIZE, SIZE), np.float32)
    for mask in masks[:, 0]:
        for _ in range(rng.integers(1, 4)):
            x, y, r = rng.integers(6, 26), rng.integers(6, 26), rng.integers(3, 6)
            mask[(row - y) ** 2 + (column - x) ** 2 <= r**2] = 1
    light = 0.5 + index % 4 / 4
    return (light * masks + rng.normal(0, 0.4, masks.shape)).astype("float32"), masks
