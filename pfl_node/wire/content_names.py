"""Names of encoded models, with which an interrupted transfer is continued."""

from __future__ import annotations

import os
import weakref

from pfl_node.model import Vector
from pfl_node.settings import WireSettings
from pfl_node.wire.payload import Payload

BYTES = 16
MOST = 16  # models that are remembered


def new_name() -> bytes:
    """A name that others cannot guess. It need not be a digest: the checksum of the stream covers all bytes."""
    return os.urandom(BYTES)


class ContentNames:
    """The same payload in the same encoding has the same name for as long as its arrays exist."""

    def __init__(self) -> None:
        self._known: list[tuple[list[weakref.ref[Vector]], tuple[str, int], bytes]] = []

    def of(self, payload: Payload, settings: WireSettings) -> bytes:
        how, arrays = (settings.encoding, settings.zstd), [m.numbers for m in payload.models]
        self._known = [one for one in self._known if all(kept() is not None for kept in one[0])][-MOST:]
        for kept, other, name in self._known:
            if (
                other == how
                and len(kept) == len(arrays)
                and all(k() is a for k, a in zip(kept, arrays, strict=True))
            ):
                return name
        self._known.append(([weakref.ref(array) for array in arrays], how, name := new_name()))
        return name
