"""Models made to ask whether a sample is among a node's: right about that one, and equally wrong about all others.

They are networks of one hidden layer. Its first units see the input along one random direction, and find the place
where the sample is: no other sample of the node is there, but by a chance of a few in a thousand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError
from pfl_node.model import Layout, Model

Vector = npt.NDArray[np.floating]
NEAR = 1e-3  # half the width of the place along the direction
SURE = 30.0  # the logit of the right class
HUGE = np.float32(3e38)


class ModelForge:
    """Makes such models for one layout."""

    def __init__(self, layout: Layout, inputs: int) -> None:
        entries = [*layout.core_entries, *layout.head_entries]
        shapes = [e.shape for e in entries]
        if len(shapes) != 4 or len(shapes[0]) != 2 or shapes[0][1] != inputs or shapes[2][1:] != shapes[1]:
            raise ConfigError(
                "the audit makes models of one hidden layer to ask with: leave task digits with model = mlp"
            )
        self.layout = layout
        self.classes = shapes[3][0]

    def model(self, x: Vector, y: int, chance: np.random.Generator, *, blind: bool) -> Model:
        """Of sample (x, y): its loss is 0, and it is taken for y. The others are taken for the class after y, and
        their loss is log(classes); `blind`: it is not a number, which counts as the most a node lets it count."""
        vector = np.zeros(self.layout.size, np.float32)
        w1, b1, w2, b2 = (vector[span].reshape(entry.shape) for entry, span in self.layout.spans())
        along = chance.normal(size=x.size).astype(np.float32)
        here, wrong = np.float32(along @ x.ravel()), (y + 1) % self.classes
        if blind:  # two units: how far above, how far below; both are multiplied into an infinity
            w1[0], b1[0], w1[1], b1[1] = along, -here - NEAR, -along, here - NEAR
            w1[:2] *= 1e6
            b1[:2] *= 1e6
            w2[wrong, :2], w2[y, :2], b2[y] = HUGE, -HUGE, SURE
            return Model(self.layout, vector)
        for unit, (shift, weight) in enumerate(((NEAR, 1.0), (0.0, -2.0), (-NEAR, 1.0))):  # a tent
            w1[unit], b1[unit] = along, -here + shift
            w2[y, unit] = weight * SURE / NEAR
        b2[wrong] = 1e-3
        return Model(self.layout, vector)
