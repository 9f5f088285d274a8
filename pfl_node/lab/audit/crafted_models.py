"""Models crafted to test whether a node has a sample: right about this sample, equally wrong about all others.

They are networks of one hidden layer, whose first units project the input on a random direction and respond only
near the sample. Another sample of the node is that near with a probability of a few in a thousand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError
from pfl_node.model import Layout, Model

Vector = npt.NDArray[np.floating]
NEAR = 1e-3  # half the width of the response along the direction
SURE = 30.0  # the logit of the right class
HUGE = np.float32(3e38)


class ModelForge:
    def __init__(self, layout: Layout, inputs: int) -> None:
        entries = [*layout.core_entries, *layout.head_entries]
        shapes = [e.shape for e in entries]
        if len(shapes) != 4 or len(shapes[0]) != 2 or shapes[0][1] != inputs or shapes[2][1:] != shapes[1]:
            raise ConfigError("the audit needs models of one hidden layer: keep task digits with model = mlp")
        self.layout = layout
        self.classes = shapes[3][0]

    def model(self, x: Vector, y: int, chance: np.random.Generator, *, blind: bool) -> Model:
        """Classifies the sample (x, y) as y with loss 0, and all others as the class after y. Their loss is
        log(classes), or with `blind` NaN, which a node counts as its largest loss."""
        vector = np.zeros(self.layout.size, np.float32)
        w1, b1, w2, b2 = (vector[span].reshape(entry.shape) for entry, span in self.layout.spans())
        along = chance.normal(size=x.size).astype(np.float32)
        here, wrong = np.float32(along @ x.ravel()), (y + 1) % self.classes
        if blind:  # two units, for above and below; their outputs overflow to infinity
            w1[0], b1[0], w1[1], b1[1] = along, -here - NEAR, -along, here - NEAR
            w1[:2] *= 1e6
            b1[:2] *= 1e6
            w2[wrong, :2], w2[y, :2], b2[y] = HUGE, -HUGE, SURE
            return Model(self.layout, vector)
        for unit, (shift, weight) in enumerate(((NEAR, 1.0), (0.0, -2.0), (-NEAR, 1.0))):  # a tent function
            w1[unit], b1[unit] = along, -here + shift
            w2[y, unit] = weight * SURE / NEAR
        b2[wrong] = 1e-3
        return Model(self.layout, vector)
