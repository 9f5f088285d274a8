"""The networks of the FedED thesis (004, appendix A): three classifiers and two autoencoders."""

from __future__ import annotations

from torch import nn

from pfl_node.learning.models.layers import MaxPool, named

LETTERS = 10  # with more classes, the thesis uses other channels (tables A.2, A.3)


def cnn1(classes: int, channels: int, size: int) -> nn.Module:
    """1,042 parameters for MNIST, 2,626 for EMNIST letters."""
    return _one_layer(classes, channels, size, width=2)


def cnn2(classes: int, channels: int, size: int) -> nn.Module:
    """4,138 parameters for MNIST, 20,826 for EMNIST letters."""
    return _one_layer(classes, channels, size, width=8 if classes <= LETTERS else 16)


def cnn3(classes: int, channels: int, size: int) -> nn.Module:
    """8,266 parameters for MNIST; 23,834 for EMNIST letters, with a second convolution."""
    if classes <= LETTERS:
        return _one_layer(classes, channels, size, width=16)
    side = size // 2 // 2
    return named(
        block1=_block(channels, 8, pool=2),
        block2=_block(8, 16, pool=2),
        flat=nn.Flatten(),
        head=nn.Linear(16 * side * side, classes),
    )


def _one_layer(classes: int, channels: int, size: int, width: int) -> nn.Module:
    # paper: pooling of 4 with stride 2; here: stride 4, to match the outputs and parameter counts of the tables
    side = size // 4
    return named(
        block=_block(channels, width, pool=4), flat=nn.Flatten(), head=nn.Linear(width * side * side, classes)
    )


def _block(channels_in: int, channels: int, pool: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels_in, channels, 5, padding=2), MaxPool(pool), nn.ReLU())


def small() -> nn.Module:
    """Table A.4, for MNIST and EMNIST: 87,125 parameters."""
    return _autoencoder(image=1, near=8, mid=16, far=32, latent=4)


def large() -> nn.Module:
    """Table A.5, for CIFAR-10: 499,459 parameters."""
    # paper: no padding in the decoder; here: as in table A.4, because 3 -> 8 -> 16 -> 32 pixels need it
    return _autoencoder(image=3, near=32, mid=64, far=128, latent=64, more=1)


def _autoencoder(image: int, near: int, mid: int, far: int, latent: int, more: int = 0) -> nn.Module:
    """3 x 3 pixels in the middle; the first layer of the decoder gives 7 + `more` pixels.

    paper: batch normalisation after the first convolution too, and ReLU at the end; here: neither. The parameter
    counts match without it (with it 87,141 and 499,523), and the thesis' code ends in a sigmoid.
    """
    flat = far * 3 * 3
    return named(
        conv1=nn.Sequential(nn.Conv2d(image, near, 3, 2, padding=1), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(near, mid, 3, 2, padding=1), nn.BatchNorm2d(mid), nn.ReLU()),
        conv3=nn.Sequential(nn.Conv2d(mid, far, 3, 2), nn.ReLU(), nn.Flatten()),
        encode=nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, latent)),
        decode=nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, flat), nn.ReLU()),
        unflat=nn.Unflatten(1, (far, 3, 3)),
        back1=nn.Sequential(
            nn.ConvTranspose2d(far, mid, 3, 2, output_padding=more), nn.BatchNorm2d(mid), nn.ReLU()
        ),
        back2=nn.Sequential(_doubling(mid, near), nn.BatchNorm2d(near), nn.ReLU()),
        back3=nn.Sequential(_doubling(near, image), nn.Sigmoid()),
    )


def _doubling(channels_in: int, channels: int) -> nn.Module:
    return nn.ConvTranspose2d(channels_in, channels, 3, 2, padding=1, output_padding=1)
