"""How much a node has learnt so far: models trained and scored, and the seconds that took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pfl_node.node.ports import now


class WorkCount:
    """A running count, for the journal and the status."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()  # "trained", "scored", "measured"
        self.seconds = 0.0  # waiting for the trainer included

    @contextmanager
    def of(self, kind: str, models: int = 1) -> Iterator[None]:
        began = now()
        yield
        self.models[kind] += models
        self.seconds += now() - began
