"""Whose numbers these are: models come from peers and are taken apart before they are merged. Pure."""

from __future__ import annotations

from weakref import ref

import numpy as np

from pfl_node.model import Model, Vector
from pfl_node.types import PeerId


class Provenance:
    """Remembers who sent an array as long as somebody uses it; a core or a head is a view of it."""

    def __init__(self) -> None:
        self._senders: dict[int, tuple[ref[Vector], PeerId]] = {}

    def came(self, model: Model, sender: PeerId) -> None:
        owner = _owner(model)
        key = id(owner)
        self._senders[key] = (ref(owner, lambda _: self._forget(key)), sender)

    def of(self, model: Model) -> PeerId | None:
        """None: of nobody else."""
        owner = _owner(model)
        known = self._senders.get(id(owner))
        return known[1] if known is not None and known[0]() is owner else None

    def __len__(self) -> int:
        return len(self._senders)

    def _forget(self, key: int) -> None:
        known = self._senders.get(key)
        if known is not None and known[0]() is None:
            del self._senders[key]


def _owner(model: Model) -> Vector:
    array = model.vector
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
