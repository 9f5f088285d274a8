"""Durations and sizes in words, for lines that operators read."""

from __future__ import annotations

UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


def span(seconds: float) -> str:
    """A duration of at least two of its unit, so that rounding changes it little: 90 s, 12 min, 36 h, 10 days."""
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"


def size(count: float) -> str:
    """A number of bytes with two digits: 90 GB, 5.5 MB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{float(f'{count / unit:.2g}'):g} {name}"
    return f"{count:.0f} B"
