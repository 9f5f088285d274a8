"""FedBN: batch normalisation stays at each site, because each scanner has its own contrast; the rest travels."""

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as fn


def scanners(index: int | None = None, seed: int = 0, private: bool = True) -> dict[str, object]:
    """Which of four patterns is it? `private = false` averages batch normalisation too, for comparison."""
    x, y = scanned(240, index or 0, seed)
    return {
        "model": Network,
        "train": (x[:160], y[:160]),
        "test": (x[160:], y[160:]),
        "private": "*bn*" if private else (),
        "train_defaults": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "batch": 16, "keep_optimizer": True},
    }


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = fn.max_pool2d(fn.relu(self.bn1(self.conv1(x))), 2)
        return self.head(fn.relu(self.bn2(self.conv2(x))).amax((2, 3)))


def scanned(count: int, index: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gratings in four directions, with the brightness and contrast of this site's scanner."""
    rng = np.random.default_rng([seed, index])
    y = rng.integers(0, 4, count)
    row, column = np.mgrid[0:12, 0:12]
    angle = (np.pi / 4 * y)[:, None, None]
    wave = np.sin(1.2 * (row * np.sin(angle) + column * np.cos(angle)) + rng.uniform(0, 6, (count, 1, 1)))
    image = wave + rng.normal(0, 0.8, wave.shape)
    bright, contrast = np.random.default_rng([7, index]).uniform([-4, 0.2], [4, 5])
    return (bright + contrast * image)[:, None].astype("float32"), y
