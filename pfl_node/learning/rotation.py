"""Rotate images by an angle. Pure numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # images x height x width x channels

SOME = 256  # images per batch, to bound the memory for float32 sums


def turned(images: Pixels, angle: float) -> Pixels:
    """Rotate square images counter-clockwise: exactly for multiples of 90 degrees, else with bilinear
    interpolation and black corners."""
    quarters, rest = divmod(angle % 360, 90)
    if rest == 0:
        return np.rot90(images, int(quarters) % 4, axes=(1, 2))
    out = np.empty_like(images)
    corners = _corners(images.shape[1], angle)
    for start in range(0, len(images), SOME):
        out[start : start + SOME] = _mixed(images[start : start + SOME], corners)
    return out


def _mixed(images: Pixels, corners: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]]) -> Pixels:
    n, side, _, channels = images.shape
    flat = images.reshape(n, side * side, channels)
    total = np.zeros(flat.shape, np.float32)
    for where, weight in corners:
        total += flat[:, where] * weight[:, None]
    return np.rint(total).astype(np.uint8).reshape(images.shape)


def _corners(side: int, angle: float) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]]:
    """The four source pixels of each pixel, and their weights (0 outside the image)."""
    middle = (side - 1) / 2
    y, x = np.mgrid[:side, :side].reshape(2, -1) - middle
    turn = np.deg2rad(angle)
    from_x = np.cos(turn) * x - np.sin(turn) * y + middle
    from_y = np.sin(turn) * x + np.cos(turn) * y + middle
    left, top = np.floor(from_x).astype(np.intp), np.floor(from_y).astype(np.intp)
    corners = []
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        weight = (1 - np.abs(from_x - column)) * (1 - np.abs(from_y - row))
        inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
        where = np.where(inside, row * side + column, 0)
        corners.append((where, np.where(inside, weight, 0).astype(np.float32)))
    return corners
