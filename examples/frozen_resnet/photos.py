"""An image folder with augmentation and a frozen ResNet-18: only the last layer is trained and travels."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import v2

CLASSES = ("circle", "square", "stripes")
TENSOR = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))
EVALUATE = v2.Compose([v2.Resize(32), *TENSOR])
TRAIN = v2.Compose([v2.RandomResizedCrop(32, scale=(0.7, 1.0)), v2.RandomHorizontalFlip(), *TENSOR])


def photos(folder: str = "", index: int | None = None, seed: int = 0) -> dict[str, object]:
    """Three kinds of pictures in `folder`/train and `folder`/test, one folder for each class."""
    root = Path(folder) if folder else drawn(index or 0, seed)
    return {
        "model": frozen_resnet,
        "train": ImageFolder(str(root / "train"), TRAIN),  # augmented anew in every epoch
        "test": ImageFolder(str(root / "test"), EVALUATE),
        "train_defaults": {"optimizer": "adam", "lr": 0.01, "batch": 16},
    }


def frozen_resnet() -> nn.Module:
    model = resnet18(weights=None)  # weights="DEFAULT" downloads those of ImageNet
    model.requires_grad_(False)
    model.fc = nn.Linear(512, len(CLASSES))
    return model


_folders: list[TemporaryDirectory[str]] = []  # deleted when the process ends


def drawn(index: int, seed: int) -> Path:
    """Pictures of this site, drawn because the example comes without any."""
    _folders.append(TemporaryDirectory(prefix="photos-"))
    rng = np.random.default_rng([seed, index])
    for split, count in (("train", 16), ("test", 8)):
        for name in CLASSES:
            home = Path(_folders[-1].name) / split / name
            home.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(picture(name, rng)).save(home / f"{number:03}.png")
    return Path(_folders[-1].name)


def picture(name: str, rng: np.random.Generator) -> np.ndarray:
    row, column = np.mgrid[0:48, 0:48]
    x, y, size = rng.integers(16, 32), rng.integers(16, 32), rng.integers(8, 14)
    shape = {
        "circle": (row - y) ** 2 + (column - x) ** 2 < size**2,
        "square": (abs(row - y) < size) & (abs(column - x) < size),
        "stripes": (row + x) // (size // 3) % 2 == 0,
    }[name]
    image = rng.integers(0, 90, (48, 48, 3))
    image[shape] += rng.integers(90, 165, 3)
    return image.astype(np.uint8)
