"""Data workers of a Python script.

By default, each process that multiprocessing starts runs the script again: everything at its top level, including
the call that started the workers.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from pfl_node.errors import TaskError

MAIN = "__main__"


@contextmanager
def for_workers(data: Any) -> Iterator[None]:
    """Processes that start within the context run the script only if the data has classes or functions of it.
    Raises TaskError if they do and the script has no `if __name__ == "__main__"`."""
    main = sys.modules[MAIN]
    if uses_main(data):
        _check_guard(main)
        yield
        return
    sys.modules[MAIN] = ModuleType(MAIN)
    try:
        yield
    finally:
        sys.modules[MAIN] = main


def uses_main(data: Any) -> bool:
    """Whether the pickled data refers to an object of the script."""
    search = _Search(io.BytesIO())
    search.dump(data)
    return search.found


class _Search(ForkingPickler):
    """A pickler that skips the numbers."""

    found = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == MAIN:
            self.found = True
        return (int, ()) if isinstance(value, Tensor | np.ndarray) else NotImplemented


def _check_guard(main: ModuleType) -> None:
    file = getattr(main, "__file__", None)
    if file is None:
        raise TaskError(
            "is of a class of the notebook: put it into a file for data.workers, or set data.workers = 0"
        )
    if "__name__" not in Path(file).read_text(errors="replace"):
        raise TaskError(
            f"is of a class of {Path(file).name}, which data.workers import: put what starts the run under "
            '`if __name__ == "__main__":`, or the class into another file'
        )
