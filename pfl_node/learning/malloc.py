"""Keeps freed memory of a model's or an activation's size in the process. Linux with glibc only.

By default glibc returns such blocks to the kernel and maps them again page by page. Evaluating 64 images with
`facade_lenet` then takes 4,000 page faults and 1.4 times the CPU time (`python -m benchmarks.kept_memory`); gRPC,
which allocates a buffer for every message, took 2.6 times as long to send a model of 1 MB. The price: a process
may keep KEEP bytes that it does not need. This is documented behaviour of glibc (mallopt(3)).
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
