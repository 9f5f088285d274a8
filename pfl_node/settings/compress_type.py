"""The value of `wire.compress`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

NONE = "none"
EXAMPLES = "none, top:0.2, fragments:16 or fragments:16/4"
MOST_SLICES = 4096


@dataclass(frozen=True, slots=True)
class Compression:
    """A parsed `wire.compress`."""

    kind: Literal["", "top", "fragments"] = ""  # empty: messages are complete
    share: float = 1.0  # of the numbers in a message
    slices: int = 1

    @classmethod
    def parse(cls, text: str) -> Compression:
        """Raises ValueError."""
        kind, _, rest = text.partition(":")
        try:
            if text == NONE:
                return cls()
            if kind == "top" and 0 < (share := float(rest)) <= 1:
                return cls("top", share)
            of, _, some = rest.partition("/")
            if kind == "fragments" and 1 <= int(some or 1) <= int(of) <= MOST_SLICES:
                return cls("fragments", int(some or 1) / int(of), int(of))
        except ValueError:
            pass
        raise ValueError(f"{text!r} is not a compression: give {EXAMPLES}")


def _checked(text: str) -> str:
    Compression.parse(text)
    return text


Compress = Annotated[str, AfterValidator(_checked), WithJsonSchema({"words": EXAMPLES})]
