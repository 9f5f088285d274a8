"""Models as rows of numbers, for tests of what happens to the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pfl_node.aggregate import combine
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import AggregateSettings

Rows = npt.NDArray[np.float32]
Exact = npt.NDArray[np.float64]

numbers = st.floats(-100, 100, width=32)
wild = st.floats(allow_nan=False, allow_infinity=False, width=32)


def tables(most: int = 9, elements: st.SearchStrategy[float] = numbers, least: int = 1) -> st.SearchStrategy[Rows]:
    """Some models of a few numbers, one a row."""
    return arrays(np.float32, st.tuples(st.integers(least, most), st.integers(1, 6)), elements=elements)


def flat(rows: Rows) -> list[Model]:
    layout = Layout((Entry("w", (rows.shape[1],)),), ())
    return [Model(layout, np.ascontiguousarray(row)) for row in rows]


def by(rule: str, byzantine: int = 1, clip: float | None = None) -> AggregateSettings:
    return AggregateSettings.model_validate({"rule": rule, "byzantine": byzantine, "clip": clip})


def combined(settings: AggregateSettings, rows: Rows, **more: Any) -> Rows:
    """The first row is mine."""
    mine, *others = flat(rows)
    return combine(settings, mine, others, **more).vector


def norms(rows: Rows | Exact) -> Exact:
    return np.asarray(np.linalg.norm(np.asarray(rows, np.float64), axis=-1))


def spread(rows: Rows | Exact) -> float:
    """The largest distance between two rows."""
    exact = np.asarray(rows, np.float64)
    return float(norms(exact[:, None] - exact[None]).max())
