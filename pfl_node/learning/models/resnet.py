"""torchvision's ResNet-18, which the FedED thesis (004) uses for CIFAR-10."""

from __future__ import annotations

from torch import nn


def resnet18(classes: int, channels: int, _: int) -> nn.Module:
    """11,181,642 parameters for 10 classes, for any image size."""
    # paper: its code has dropout before the last layer; here: none, because the text has none
    from torchvision.models import resnet18 as theirs

    module: nn.Module = theirs(num_classes=classes)
    if channels != 3:
        module.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
    return module
