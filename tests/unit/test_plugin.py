"""Errors in one line, and whose fault they are."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pfl_node import aggregate, plugin
from pfl_node.errors import ConfigError, LayoutMismatch, PeerGone, PflError, TaskError
from pfl_node.plugin import Explanation, explain, users_fault


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
    assert str(fault) == "task own.py:f failed (test_plugin.py, line 26): ValueError: two lines"


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


def test_models_that_do_not_fit_are_the_fault_of_the_users_policy_also_within_its_base_class() -> None:
    def mixes() -> None:
        raise LayoutMismatch("they do not fit")

    error = raised(mixes)
    fault = users_fault("policy", "own.py:P", error, ConfigError)
    assert re.fullmatch(r"policy own\.py:P failed \(test_plugin\.py, line \d+\): they do not fit", str(fault))
    assert str(users_fault("policy", "own.py:P", error.with_traceback(None), ConfigError)) == (
        "policy own.py:P failed: they do not fit"
    )
    assert users_fault("policy", "el", error, ConfigError) is None


def too_small() -> None:
    raise ValueError("too small")


def test_a_users_mistake_and_another_failure_are_told_apart() -> None:
    assert explain(ConfigError("no\nsuch thing")) == Explanation("no such thing", mistake=True)
    assert explain(TaskError("no data")).mistake
    assert explain(PeerGone("n1", "no answer")) == Explanation("n1: no answer")


def test_an_error_in_the_users_code_names_the_line() -> None:
    found = explain(raised(too_small))
    assert found.mistake
    assert found.line.startswith("your code failed (test_plugin.py, line ")
    assert found.line.endswith("): ValueError: too small")


def test_any_other_error_is_a_bug() -> None:
    assert explain(KeyError("x")) == Explanation("KeyError: 'x'", bug=True)


def test_of_several_errors_the_first_counts() -> None:
    group = BaseExceptionGroup("nodes", [ConfigError("first"), KeyError("second")])
    assert explain(group) == Explanation("first", mistake=True)


def at_the_top() -> None: ...


def test_an_object_of_a_program_is_found_by_its_place() -> None:
    def inside() -> None: ...

    place = plugin.register(inside)
    assert plugin.load("task", place, TaskError) is inside
    plugin.check_place("task", place, TaskError)
    with pytest.raises(ConfigError, match="top level of a file"):
        plugin.check_importable(place)
    top = plugin.register(at_the_top)
    assert top == f"{__name__}:at_the_top"
    plugin.check_importable(top)
    plugin.check_importable("digits")


def test_a_place_becomes_valid_in_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plugin.absolute("a/mine.py:f") == f"{tmp_path}/a/mine.py:f"
    assert plugin.absolute("package.module:f") == "package.module:f"
    assert plugin.absolute("digits") == "digits"


def test_a_file_that_two_threads_import_is_whole_for_both(tmp_path: Path) -> None:
    """The trackers of a swarm's nodes load the same file at the same time."""
    file = tmp_path / "slow.py"
    file.write_text("import threading\nthreading.Event().wait(0.2)\ndef on_round(report): ...\n")
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: plugin.load("call", f"{file}:on_round", ConfigError), range(2)))
    assert found[0] is found[1]
