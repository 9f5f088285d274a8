"""Fail points inside a test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pfl_node.failpoints import arm


@contextmanager
def failing(text: str) -> Iterator[None]:
    """These are on until the end of the block."""
    arm(text)
    try:
        yield
    finally:
        arm("")
