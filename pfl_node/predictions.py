"""A model's predictions for the auxiliary samples of a task, as a value that is sent like a model. Pure; numpy
only.

It has one row of class probabilities for each sample, the novelty of each sample to the node, and the node's
number of samples per class. Values that were not requested are zero. The layout identifies the samples, so that
nodes with different auxiliary samples cannot mix their predictions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model

Array = npt.NDArray[np.float32]


def layout_for(samples: int, classes: int, which: str) -> Layout:
    """`which` is a digest of the samples."""
    outputs = Entry(f"outputs/{which}", (samples, classes), trained=False)
    more = (Entry("novelty", (samples,), trained=False), Entry("counts", (classes,), trained=False))
    return Layout((outputs, *more), (), "predictions")


def pack(
    layout: Layout,
    outputs: npt.NDArray[Any],
    novelty: npt.NDArray[Any] | None = None,
    counts: npt.NDArray[Any] | None = None,
) -> Model:
    vector = np.zeros(layout.size, np.float32)
    for given, (entry, span) in zip((outputs, novelty, counts), layout.spans(), strict=True):
        if given is not None:
            if given.shape != entry.shape:
                raise LayoutMismatch(f"{entry.name} must have the shape {entry.shape}, not {given.shape}")
            vector[span] = given.ravel()
    return Model(layout, vector)


def outputs(said: Model) -> Array:
    """(samples, classes): each row sums to one."""
    return _piece(said, 0)


def novelty(said: Model) -> Array:
    """(samples,): zero if it was not requested."""
    return _piece(said, 1)


def counts(said: Model) -> Array:
    """(classes,): zero if it was not requested."""
    return _piece(said, 2)


def _piece(said: Model, number: int) -> Array:
    if said.layout.part != "predictions":
        raise LayoutMismatch(f"{said!r} does not hold predictions")
    entry, span = list(said.layout.spans())[number]
    return said.vector[span].reshape(entry.shape)
