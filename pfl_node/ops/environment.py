"""The environment of a result: versions, commit, machine. Does not import the packages."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pfl_node import __version__
from pfl_node.learning.kernels import KERNELS

PACKAGES = ("torch", "torchvision", "numpy", "grpcio", "protobuf", "pydantic")
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, Any]:
    return {
        "pfl-node": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "kernels": {name: found for name in KERNELS if (found := os.environ.get(name))},
        "machine": {"system": platform.platform(), "cpu": _cpu(), "cores": os.cpu_count()},
    }


@cache
def commit() -> str | None:
    """The commit of the checkout, with a + if files have changed; None: installed from a package."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
