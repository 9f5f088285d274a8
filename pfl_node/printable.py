"""Escapes text of a peer, a file or a request, so that it is safe in a terminal and in a log line."""

from __future__ import annotations

from pfl_node.errors import ConfigError

LONGEST = 64  # characters of an id, a name or a run


def printable(text: str) -> str:
    """Replace control and format characters (escape sequences, line ends, text direction) by JSON escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def check_word(what: str, text: str) -> None:
    """Raises ConfigError for a name or a run that every peer would refuse."""
    if not text.isprintable() or len(text) > LONGEST:
        raise ConfigError(f"{what} {text[:LONGEST]!r} must be printable and have at most {LONGEST} characters")


def _escape(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
