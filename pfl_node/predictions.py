"""What a model says about the auxiliary samples of a task, as a value that travels like a model. Pure; numpy only.

One row of class probabilities for each sample, how strange each sample is to the node that says it, and how many
samples of each class it has. What was not asked for is zero. The layout names the samples: nodes whose auxiliary
samples differ cannot mix up their predictions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model

Array = npt.NDArray[np.float32]


def layout_for(samples: int, classes: int, which: str) -> Layout:
    """Of predictions about so many samples; `which` is a digest of the samples themselves."""
    outputs = Entry(f"outputs/{which}", (samples, classes), trained=False)
    more = (Entry("novelty", (samples,), trained=False), Entry("counts", (classes,), trained=False))
    return Layout((outputs, *more), (), "predictions")


def pack(
    layout: Layout,
    outputs: npt.NDArray[Any],
    novelty: npt.NDArray[Any] | None = None,
    counts: npt.NDArray[Any] | None = None,
) -> Model:
    """The three as one value."""
    vector = np.zeros(layout.size, np.float32)
    for given, (entry, span) in zip((outputs, novelty, counts), layout.spans(), strict=True):
        if given is not None:
            if given.shape != entry.shape:
                raise LayoutMismatch(f"{entry.name} has the shape {entry.shape}, not {given.shape}")
            vector[span] = given.ravel()
    return Model(layout, vector)


def outputs(said: Model) -> Array:
    """(samples, classes): each row sums to one."""
    return _piece(said, 0)


def novelty(said: Model) -> Array:
    """(samples,): zero where it was not asked for."""
    return _piece(said, 1)


def counts(said: Model) -> Array:
    """(classes,): zero where it was not asked for."""
    return _piece(said, 2)


def _piece(said: Model, number: int) -> Array:
    if said.layout.part != "predictions":
        raise LayoutMismatch(f"{said!r} is no predictions")
    entry, span = list(said.layout.spans())[number]
    return said.vector[span].reshape(entry.shape)
