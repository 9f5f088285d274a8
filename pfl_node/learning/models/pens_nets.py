"""The network of the PENS paper (003, section 5.2) and of the thesis before it (000, table 3.1)."""

from __future__ import annotations

from torch import nn

from pfl_node.learning.models.layers import MaxPool, halved, named

UNITS = 64


def cnn(classes: int, channels: int, size: int) -> nn.Module:
    """73,418 parameters for CIFAR-10."""
    return _cnn(classes, channels, size, between=nn.ReLU())


def cnn_linear(classes: int, channels: int, size: int) -> nn.Module:
    """As in the thesis' table: no activation between the two fully connected layers."""
    return _cnn(classes, channels, size, between=nn.Identity())


def _cnn(classes: int, channels: int, size: int, between: nn.Module) -> nn.Module:
    side = halved(size, 3, loses=2)
    return named(
        block1=_block(channels, 32),
        block2=_block(32, 64),
        block3=_block(64, 64),
        flat=nn.Flatten(),
        hidden=nn.Linear(64 * side * side, UNITS),
        between=between,
        head=nn.Linear(UNITS, classes),
    )


def _block(channels_in: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels_in, channels, 3), MaxPool(2), nn.ReLU())
