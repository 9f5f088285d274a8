"""Names of encoded models, by which a transfer that broke off is continued."""

from __future__ import annotations

import os
import weakref

from pfl_node.model import Model, Vector
from pfl_node.settings import WireSettings

BYTES = 16
MOST = 16  # models that are remembered


def new_name() -> bytes:
    """Others cannot guess it. It is no digest: the checksum of the stream covers all bytes."""
    return os.urandom(BYTES)


class ContentNames:
    """The same model in the same encoding has the same name for as long as it exists."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Vector], tuple[str, int], bytes]] = []

    def of(self, model: Model, settings: WireSettings) -> bytes:
        how = settings.encoding, settings.zstd
        self._known = [one for one in self._known if one[0]() is not None][-MOST:]
        for vector, other, name in self._known:
            if vector() is model.vector and other == how:
                return name
        self._known.append((weakref.ref(model.vector), how, name := new_name()))
        return name
