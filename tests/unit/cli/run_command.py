"""Runs the command inside the test's own process and gives back what a shell would see."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pfl_node.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """`shell("peers", "127.0.0.1:7000")`"""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Outcome:
        self._capsys.readouterr()
        code = main(words)
        return Outcome(code, *self._capsys.readouterr())

    def mistake(self, *words: str) -> str:
        """The one line of a user's mistake, without the program's name."""
        outcome = self(*words)
        assert outcome.code == 2, outcome
        assert outcome.out == "", outcome
        return self.line(outcome)

    def failure(self, *words: str) -> str:
        """The one line of something that went wrong."""
        outcome = self(*words)
        assert outcome.code == 1, outcome
        return self.line(outcome)

    @staticmethod
    def line(outcome: Outcome) -> str:
        assert outcome.err.startswith("pfl-node: "), outcome
        assert outcome.err.count("\n") == 1, outcome
        return outcome.err.removeprefix("pfl-node: ").removesuffix("\n")
