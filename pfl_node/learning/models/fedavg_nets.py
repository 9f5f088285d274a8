"""The two networks for MNIST of the FedAvg paper (001; McMahan et al. 2017)."""

from __future__ import annotations

from torch import nn

from pfl_node.learning.models.layers import MaxPool, halved, named


def two_layers(classes: int, channels: int, size: int) -> nn.Module:
    """The "2NN": 199,210 parameters for MNIST."""
    return named(
        flat=nn.Flatten(),
        hidden1=nn.Linear(channels * size * size, 200),
        relu1=nn.ReLU(),
        hidden2=nn.Linear(200, 200),
        relu2=nn.ReLU(),
        head=nn.Linear(200, classes),
    )


def cnn(classes: int, channels: int, size: int) -> nn.Module:
    """1,663,370 parameters for MNIST."""
    side = halved(size, 2)
    return named(
        block1=_block(channels, 32),
        block2=_block(32, 64),
        flat=nn.Flatten(),
        hidden=nn.Linear(64 * side * side, 512),
        relu=nn.ReLU(),
        head=nn.Linear(512, classes),
    )


def _block(channels_in: int, channels: int) -> nn.Module:
    # paper: names no activation after a convolution; here: ReLU, as after its fully connected layer
    return nn.Sequential(nn.Conv2d(channels_in, channels, 5, padding=2), MaxPool(2), nn.ReLU())
