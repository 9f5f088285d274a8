"""Counts the models that a node has trained and scored, and the seconds spent on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pfl_node.node.ports import now


class WorkCount:
    def __init__(self) -> None:
        self.models: Counter[str] = Counter()  # "trained", "scored", "measured"
        self.seconds = 0.0  # including the wait for the trainer

    @contextmanager
    def of(self, kind: str, models: int = 1) -> Iterator[None]:
        began = now()
        yield
        self.models[kind] += models
        self.seconds += now() - began
