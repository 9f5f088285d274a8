"""One coroutine of a policy under way: asks, waits for the answer, goes on. Knows no step by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pfl_node.steps import Flow, Step

WAIT: Final = object()  # what an answerer returns when the answer comes later, through the fiber's reply

Answerer = Callable[["Fiber", Step[Any]], Any]


class Reply:
    """The way back to a fiber that waits. It works once, and not when the fiber was stopped meanwhile."""

    __slots__ = ("_fiber",)

    def __init__(self, fiber: Fiber) -> None:
        self._fiber = fiber

    def __call__(self, answer: Any) -> None:
        if self.open:
            self._fiber.run(answer)

    @property
    def open(self) -> bool:
        return self._fiber.pending is self


class Fiber:
    """Runs until a step has to wait, and again when its answer comes."""

    __slots__ = ("_answer", "_end", "_flow", "name", "pending", "step")

    def __init__(self, name: str, flow: Flow, answer: Answerer, end: Callable[[], None]) -> None:
        self.name = name
        self.step: Step[Any] | None = None  # what it waits for
        self.pending: Reply | None = None
        self._flow = flow
        self._answer = answer
        self._end = end

    def run(self, answer: Any = None) -> None:
        self.pending = None
        try:
            self._advance(answer)
        except Exception as error:
            error.add_note(self.name)
            raise

    def _advance(self, answer: Any) -> None:
        failure: Exception | None = None
        while True:
            try:
                self.step = self._flow.throw(failure) if failure else self._flow.send(answer)
            except StopIteration:
                self.step = None
                self._end()
                return
            failure = None
            if not isinstance(self.step, Step):
                failure = TypeError(f"a policy awaits steps only, not {self.step!r}")
                continue
            try:
                answer = self._answer(self, self.step)
            except Exception as error:  # it fails in the policy, at the line that asked
                failure = error
                continue
            if answer is WAIT:
                return

    def reply(self) -> Reply:
        self.pending = Reply(self)
        return self.pending

    def stop(self) -> None:
        self.pending = None
        self._flow.close()
