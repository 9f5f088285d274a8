"""A cache of evaluations: equal models on the same data, as with FedAvg, are evaluated once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import xxhash
from torch import Tensor

from pfl_node.learning.samples import Samples
from pfl_node.model import Model, Vector
from pfl_node.types import Eval

KEPT = 8  # entries; nodes evaluate one after the other, so the last of each cluster suffice


class Measured(NamedTuple):
    """An evaluation, and each sample's true and predicted class (None: the outputs are not class scores)."""

    figures: Eval
    classes: tuple[Tensor, Tensor] | None


class Key(NamedTuple):
    """A model, data and a loss."""

    model: bytes
    data: tuple[Hashable, ...]
    loss: int


class EvalCache:
    """Keeps a reference to the data, so that its address is not reused."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[Key, tuple[Measured, Samples, object]] = OrderedDict()

    def key(self, model: Model, private: Vector | None, data: Samples, loss: object) -> Key:
        digest = xxhash.xxh3_128_digest(model.vector.data)
        if private is not None:
            digest += xxhash.xxh3_128_digest(private.data)
        return Key(digest, data.identity, id(loss))

    def get(self, key: Key) -> Measured | None:
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: Key, found: Measured, data: Samples, loss: object) -> None:
        self._known[key] = (found, data, loss)
        if len(self._known) > self._kept:
            self._known.popitem(last=False)
