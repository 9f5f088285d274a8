"""Escapes text of a peer, a file or a request, so that it is safe in a terminal and in a log line."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace control and format characters (escape sequences, line ends, text direction) by JSON escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
