"""Names of encoded models, with which an interrupted transfer is continued."""

from __future__ import annotations

import os
import weakref

import numpy as np

from pfl_node.model import Model, Vector
from pfl_node.settings import WireSettings
from pfl_node.wire.payload import Payload

BYTES = 16
MOST = 16  # models that are remembered

Content = tuple[str | int, ...]  # the encoding, and the layout and the place in memory of each model


def new_name() -> bytes:
    """A name that others cannot guess. It need not be a digest: the checksum of the stream covers all bytes."""
    return os.urandom(BYTES)


class ContentNames:
    """The same payload in the same encoding has the same name for as long as its arrays exist. A part of a model
    is a new view of the same array each time."""

    def __init__(self) -> None:
        self._known: list[tuple[list[weakref.ref[Vector]], Content, bytes]] = []

    def of(self, payload: Payload, settings: WireSettings) -> bytes:
        facts = (fact for m in payload.models for fact in _facts(m))
        content: Content = (settings.encoding, settings.zstd, *facts)
        self._known = [one for one in self._known if all(kept() is not None for kept in one[0])][-MOST:]
        for _, other, name in self._known:
            if other == content:
                return name
        owners = [weakref.ref(_owner(m.numbers)) for m in payload.models]
        self._known.append((owners, content, name := new_name()))
        return name


def _facts(model: Model) -> tuple[str, int, int]:
    numbers = model.numbers
    return model.layout.digest, numbers.__array_interface__["data"][0], numbers.size


def _owner(array: Vector) -> Vector:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
