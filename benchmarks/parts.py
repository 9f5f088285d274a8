"""CPU seconds by part, measured by wrapping functions; a nested call counts for the inner part only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


class Parts:
    """For the current thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open = ["outside"]
        self._since = time.thread_time()

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        """Charge the time since the last call to the innermost open part."""
        now = time.thread_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def around(self, *places: tuple[Any, str, str]) -> Iterator[None]:
        """Wrap functions, given as (owner, name, part), inside the context."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        try:
            for owner, name, part in places:
                setattr(owner, name, self.wrapped(getattr(owner, name), part))
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def wrapped(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.of(part):
                return function(*args, **kwargs)

        return timed
