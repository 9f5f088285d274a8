from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import affine_grid, grid_sample

from pfl_node.learning.rotation import SOME, Pixels, turned

noise = np.random.default_rng(0).integers(0, 256, (5, 12, 12, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("angle", "quarters"), [(0, 0), (90, 1), (180, 2), (270, 3), (360, 0), (-90, 3), (90.0, 1)]
)
def test_quarter_turns_are_exact(angle: float, quarters: int) -> None:
    np.testing.assert_array_equal(turned(noise, angle)[3, :, :, 1], np.rot90(noise[3, :, :, 1], quarters))


@given(st.sampled_from([0, 90, 180, 270]), st.sampled_from([0, 90, 180, 270]))
def test_quarter_turns_add_up(first: int, second: int) -> None:
    np.testing.assert_array_equal(turned(turned(noise, first), second), turned(noise, first + second))


def with_torch(images: Pixels, angle: float) -> Pixels:
    """Another bilinear rotation, by a library."""
    turn = math.radians(angle)
    matrix = torch.tensor([[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0]])
    x = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    grid = affine_grid(matrix.double().expand(len(x), 2, 3), list(x.shape), align_corners=False)
    out = grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return out.permute(0, 2, 3, 1).round().numpy().astype(np.uint8)


@settings(max_examples=30)
@given(st.floats(-360, 360))
def test_other_angles_mix_neighbouring_pixels_as_torch_does(angle: float) -> None:
    ours, theirs = turned(noise, angle).astype(int), with_torch(noise, angle).astype(int)
    assert np.abs(ours - theirs).max() <= 1  # one is rounded in float32, the other in float64


def test_just_beside_a_quarter_turn_is_nearly_a_quarter_turn() -> None:
    for angle in (0, 90, 180, 270):
        beside = turned(noise, angle + 1e-4).astype(int)
        assert np.abs(beside - turned(noise, angle).astype(int)).max() <= 1


def test_the_corners_become_black_and_the_middle_stays() -> None:
    white = np.full((1, 21, 21, 1), 255, np.uint8)
    out = turned(white, 45)[0, :, :, 0]
    assert out[0, 0] == out[0, -1] == out[-1, 0] == 0
    assert (out[6:15, 6:15] == 255).all()


def test_many_images_are_turned_like_few() -> None:
    many = np.random.default_rng(1).integers(0, 256, (SOME + 3, 6, 6, 1), dtype=np.uint8)
    np.testing.assert_array_equal(turned(many, 30)[-3:], turned(many[-3:], 30))
