"""The networks of the FACADE thesis (002, section 4.1.1)."""

from __future__ import annotations

from torch import Tensor, nn

from pfl_node.learning.models.layers import MaxPool, halved, named

GROUPS = 2


def lenet(classes: int, channels: int, size: int) -> nn.Module:
    """89,834 parameters for CIFAR-10, 120,554 for Imagenette at 64 pixels. The thesis says about 120k and 250k,
    which are the numbers for the 41 classes of Flickr-Mammals."""
    side = halved(size, 3)
    return named(
        block1=_block(channels, 32),
        block2=_block(32, 32),
        block3=_block(32, 64),
        flat=nn.Flatten(),
        head=nn.Linear(64 * side * side, classes),
    )


def _block(channels_in: int, channels: int) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels, 5, padding=2)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, channels), MaxPool(2), nn.ReLU())


def resnet8(classes: int, channels: int, _: int) -> nn.Module:
    """312,649 parameters for 41 classes, for any image size."""
    return named(
        first=nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        block1=Residual(32, 32, stride=1),
        block2=Residual(32, 64, stride=2),
        block3=Residual(64, 128, stride=2),
        mean=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        head=nn.Linear(128, classes),
    )


class Residual(nn.Module):
    """A basic block (He et al. 2015): two convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            straight = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.around = nn.Sequential(straight, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.through(x) + self.around(x)
        return out.relu()
