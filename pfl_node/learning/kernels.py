"""The CPU kernels of a simulation: those of every x86-64 processor with AVX2.

torch, oneDNN, MKL, OpenBLAS and numpy choose kernels by the processor, and other kernels round differently. With
these environment variables, a simulation writes the same journal on all such processors, of Intel and of AMD. A
variable that is already set keeps its value.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
KERNELS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # AVX2 is faster for fully connected layers, but differs on AMD's processors
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
OLD_NUMPY = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"  # the names before numpy 2.4


def kernels() -> dict[str, str]:
    """The environment variables that choose the kernels, for a process that has not loaded numpy and torch."""
    return {name: os.environ.get(name, value) for name, value in _ours().items()}


def choose_kernels() -> None:
    """Choose the kernels of this process, unless torch has chosen them: it does so when it is loaded."""
    if "torch" not in sys.modules:
        os.environ.update(kernels())


def worker_environment() -> dict[str, str]:
    return ONE_THREAD | kernels()


@cache
def _ours() -> dict[str, str]:
    try:
        has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        has_avx2 = False
    if not has_avx2:
        return {}
    major, minor = version("numpy").split(".")[:2]
    return KERNELS | ({"NPY_DISABLE_CPU_FEATURES": OLD_NUMPY} if (int(major), int(minor)) < (2, 4) else {})
