"""The contract's toy learner, and models whose numbers a test can choose."""

from __future__ import annotations

import numpy as np

from pfl_node.model import Model
from pfl_node.testing.contract.toy_learner import LAYOUT, ToyLearner

__all__ = ["LAYOUT", "ToyLearner", "constant"]


def constant(value: float) -> Model:
    return Model(LAYOUT, np.full(LAYOUT.size, value, dtype=np.float32))
