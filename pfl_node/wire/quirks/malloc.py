"""Keeps freed memory of a model's size in the process for the next message. Linux with glibc only.

gRPC allocates a new buffer for every message. By default glibc returns blocks of that size to the kernel and maps
them again page by page, which made sending a 1 MB model 2.6 times slower. The price: a process may keep KEEP bytes
that it does not need. This is documented behaviour of glibc (mallopt(3)); no upstream issue known.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

KEEP = 64 << 20
LARGEST = 32 << 20  # larger blocks are always mapped separately; the maximum that glibc allows

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@cache
def keep_memory() -> bool:
    """Once per process; False if it is not possible or the user has set MALLOC_* variables."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, KEEP) and mallopt(M_MMAP_THRESHOLD, LARGEST))
