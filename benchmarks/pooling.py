"""CPU time of evaluating the papers' networks with torch's max pooling, as a multiple of that with ours.

python -m benchmarks.pooling
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.report import show
from pfl_node.learning.models import MODELS
from pfl_node.learning.models.layers import MaxPool

NETWORKS = {"facade_lenet": (3, 32), "pens_cnn": (3, 32), "mnist_cnn": (1, 28), "cnn2": (1, 28)}
IMAGES, PAIRS, REPEATS = 100, 7, 10


def with_torchs_pooling(module: nn.Module) -> nn.Module:
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, MaxPool):
                setattr(parent, name, nn.MaxPool2d(layer.size))
    return module


def seconds(module: nn.Module, images: Tensor) -> float:
    before = time.process_time()
    with torch.inference_mode():
        for _ in range(REPEATS):
            module(images)
    return time.process_time() - before


def row(name: str) -> dict[str, object]:
    channels, size = NETWORKS[name]
    images = torch.randn(IMAGES, channels, size, size)
    ours = MODELS[name].build(10, channels, size).eval()
    torchs = with_torchs_pooling(MODELS[name].build(10, channels, size)).eval()
    pairs = [(seconds(torchs, images), seconds(ours, images)) for _ in range(PAIRS + 1)][1:]
    ratios = [a / b for a, b in pairs]
    return {
        "network": name,
        "torch's / ours": round(median(ratios), 2),
        "range": f"{min(ratios):.2f}-{max(ratios):.2f}",
        "ours, ms": round(1000 * median(b for _, b in pairs) / REPEATS, 1),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    show("Evaluation with two kinds of max pooling", [row(name) for name in NETWORKS], [f"{IMAGES} images"])
