"""Settings of all tests: one thread per process, and no test may leave anything to the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from pfl_node import failpoints

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy and torch; tests use the cores side by side
for _variable in [name for name in os.environ if name.startswith("PFL_")]:
    if _variable not in ("PFL_DATA", "PFL_TAG"):  # where tests find data sets and images
        del os.environ[_variable]

settings.register_profile("pfl", deadline=None, database=None, derandomize=True)  # the same everywhere, no files
settings.load_profile("pfl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="write the digests of tests/golden anew")


@pytest.fixture(autouse=True)
def same_process_state() -> Iterator[None]:
    """A test leaves the environment, the working directory and the fail points as it found them."""
    failpoints.arm("")
    before = _state()
    yield
    after = _state()
    failpoints.arm("")
    assert after == before


def _state() -> tuple[dict[str, str], Path, object]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return environment, Path.cwd(), dict(failpoints._armed or {})


@pytest.fixture(autouse=True, scope="module")
def no_process_left() -> Iterator[None]:
    """The tests of a module leave no process behind."""
    before = _children()
    yield
    assert not _children() - before


def _children() -> set[psutil.Process]:
    """Processes that this one has started, without the two that multiprocessing ends with it."""
    return {child for child in psutil.Process().children() if "multiprocessing" not in " ".join(_line(child))}


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []
