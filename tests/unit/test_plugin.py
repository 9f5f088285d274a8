"""Whose fault a failure is."""

from __future__ import annotations

from pfl_node import aggregate
from pfl_node.errors import ConfigError, PflError, TaskError
from pfl_node.plugin import users_fault


def raised(work: object) -> Exception:
    try:
        assert callable(work)
        work()
    except Exception as error:
        return error
    raise AssertionError("it should fail")


def mine() -> None:
    raise ValueError("two lines\nof text")


def test_a_failure_in_the_users_own_code_is_one_line_with_its_place() -> None:
    fault = users_fault("task", "own.py:f", raised(mine), TaskError)
    assert isinstance(fault, TaskError)
    assert str(fault) == "task own.py:f failed (test_plugin.py, line 20): ValueError: two lines"


def test_a_failure_in_what_we_brought_along_is_ours() -> None:
    assert users_fault("task", "digits", raised(mine), TaskError) is None


def test_a_failure_that_never_was_in_the_users_code_is_ours() -> None:
    error = raised(lambda: aggregate.mean([]))
    assert error.__traceback__
    error.__traceback__ = error.__traceback__.tb_next.tb_next if error.__traceback__.tb_next else None
    assert users_fault("policy", "own.py:P", error, ConfigError) is None


def test_an_error_that_is_one_line_already_stays() -> None:
    def complains() -> None:
        raise PflError("say it once")

    assert users_fault("task", "own.py:f", raised(complains), TaskError) is None
