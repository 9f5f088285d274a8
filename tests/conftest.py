"""Settings of all tests: one thread per process, and no test may leave anything to the next one."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import settings

from pfl_node import failpoints
from pfl_node.learning.kernels import kernels
from pfl_node.ops.logs import NOISY

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy and torch; tests use the cores side by side
os.environ.update(kernels())
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # pfl_node.wire does so when it is imported
for _variable in [name for name in os.environ if name.startswith("PFL_")]:
    if _variable not in ("PFL_DATA", "PFL_TAG"):  # where tests find data sets and images
        del os.environ[_variable]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell; processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("quick", deadline=None, database=None, derandomize=True, max_examples=50)  # no files
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=100)


def pytest_configure(config: pytest.Config) -> None:
    """Property tests try more examples where the slow tests are run too."""
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "thorough")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="write the digests of tests/golden anew")


SET_BY_LIBRARIES = {
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
}


@pytest.fixture(autouse=True)
def same_process_state() -> Iterator[None]:
    """A test leaves the environment, the working directory, the fail points and the signal handlers as they were.
    The configuration of the logs, which every command sets, is reset."""
    failpoints.arm("")
    structlog.reset_defaults()
    for name in (None, *NOISY):
        logging.getLogger(name).setLevel(logging.NOTSET if name else logging.WARNING)
    directory, environment, handlers = Path.cwd(), dict(os.environ), _signal_handlers()
    yield
    environment["PYTEST_CURRENT_TEST"] = os.environ["PYTEST_CURRENT_TEST"]
    changed = {name for name, _ in environment.items() ^ os.environ.items()} | set(failpoints._armed or ())
    changed -= SET_BY_LIBRARIES
    if _directory() != directory:
        changed.add("working directory")
    for number in [n for n, handler in _signal_handlers().items() if handler is not handlers[n]]:
        changed.add(number.name)
        signal.signal(number, handlers[number])
    os.chdir(directory)
    for name in os.environ.keys() - environment:
        del os.environ[name]
    os.environ.update(environment)
    failpoints.arm("")
    assert not changed, f"the test left {', '.join(sorted(changed))} changed"


def _signal_handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def _directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return None


@pytest.fixture(autouse=True, scope="module")
def no_process_left() -> Iterator[None]:
    """The tests of a module leave no process behind."""
    before = _children()
    yield
    _, left = psutil.wait_procs(_children() - before, timeout=10)  # those of a fork server end a little later
    assert not left


def _children() -> set[psutil.Process]:
    """Processes below this one, without multiprocessing's fork server and resource tracker, which end with it."""
    me = psutil.Process()
    return {
        child
        for child in me.children(recursive=True)
        if not _ended(child) and not (child.ppid() == me.pid and "multiprocessing" in " ".join(child.cmdline()))
    }


def _ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
