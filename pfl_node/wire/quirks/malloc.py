"""What the C heap does with memory that is free again: keep some for the next message. Linux with glibc only.

By default glibc gives blocks of a model's size back to the kernel and gets them anew, page by page: a 1 MB model
took 2.6 times as long to send. The price is that a process may hold on to KEEP bytes that it does not need.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

KEEP = 64 << 20
LARGEST = 32 << 20  # larger blocks are mapped one by one; the most that glibc allows

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@cache
def keep_memory() -> bool:
    """Once per process; False when it is not possible, or when the user has settings of their own."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, KEEP) and mallopt(M_MMAP_THRESHOLD, LARGEST))
