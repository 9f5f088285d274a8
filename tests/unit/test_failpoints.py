"""Fail points: what the variable may say, what then happens, and that every place is in the table."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_node import failpoints
from pfl_node.errors import ConfigError
from pfl_node.failpoints import FILES, PLACES, STEPS, afailpoint, arm, failpoint, parse
from tests.arm_failpoints import failing

ROOT = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    arm("")


def hits(name: str, n: int) -> list[bool]:
    return [failpoint(name) for _ in range(n)]


def test_everything_is_off_unless_the_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    assert arm() == {}
    assert not any(failpoint(name) for name in PLACES)


def test_the_variable_is_read_when_the_first_place_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", None)
    monkeypatch.setenv(failpoints.VARIABLE, "train=return")
    assert failpoint("train")
    monkeypatch.setenv(failpoints.VARIABLE, "")
    assert failpoint("train")  # and never again


def test_counts_and_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arm("train=2*off->3*return->off; merge = 1*return") == {
        "train": "2*off->3*return->off",
        "merge": "1*return",
    }
    assert hits("train", 7) == [False, False, True, True, True, False, False]
    assert hits("merge", 3) == [True, False, False]
    assert hits("leave", 3) == [False] * 3


def test_a_chance_is_drawn_by_seed_and_name() -> None:
    drawn: dict[str, list[bool]] = {}
    for seed in ("1", "1", "2"):
        arm(f"seed={seed};send.before=10%return;send.after=10%return")
        before, after = hits("send.before", 2000), hits("send.after", 2000)
        assert 140 < sum(before) < 260
        assert before != after
        drawn.setdefault(seed, before)
        assert drawn[seed] == before
    assert drawn["1"] != drawn["2"]


def test_one_place_does_not_disturb_the_chances_of_another() -> None:
    arm("train=50%return")
    alone = hits("train", 50)
    arm("train=50%return;merge=50%return")
    assert [(failpoint("merge"), failpoint("train"))[1] for _ in range(50)] == alone


def test_a_chance_that_does_not_hold_leaves_the_rest_of_the_chain() -> None:
    arm("train=0%panic->return")
    assert hits("train", 3) == [True] * 3


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS", "EIO"])
def test_an_error_is_the_systems_own(name: str) -> None:
    with (
        failing(f"checkpoint.write=error({name})"),
        pytest.raises(OSError, match=os.strerror(getattr(errno, name))),
    ):
        failpoint("checkpoint.write")


def test_in_a_coroutine_only_the_one_who_waits_is_late() -> None:
    async def go() -> list[str]:
        order: list[str] = []

        async def late() -> None:
            assert not await afailpoint("train")
            order.append("late")

        async def early() -> None:
            order.append("early")

        await asyncio.gather(late(), early())
        return order

    arm("train=sleep(20)")
    assert asyncio.run(go()) == ["early", "late"]
    arm("train=return")
    assert asyncio.run(afailpoint("train"))


def child(text: str) -> subprocess.Popen[str]:
    code = (
        "from pfl_node.failpoints import failpoint; print('before', flush=True); failpoint('join'); print('after')"
    )
    env = {**os.environ, failpoints.VARIABLE: text}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_panic_is_a_kill_that_says_where() -> None:
    out, err = (process := child("join=panic")).communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.SIGKILL, "before\n", "fail point join: panic\n")


def test_pause_stops_the_process_until_it_is_told_to_go_on() -> None:
    process = child("join=pause")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert out == "before\nafter\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "checkpoint.renam=panic",
            r"unknown fail point 'checkpoint.renam': did you mean 'checkpoint.rename'\? known: admit",
        ),
        ("qqq=panic", r"unknown fail point 'qqq': known: admit, .*train"),
        ("checkpoint.rename", r"'checkpoint.rename' is not NAME=ACTION"),
        ("train=", r"'train=' is not NAME=ACTION"),
        (
            "train=explode",
            r"train=explode: unknown action; .*off, return, panic, sleep\(MS\), error\(NAME\), pause",
        ),
        ("train=10return", r"train=10return: unknown action"),
        ("train=101%return", r"a probability is at most 100%"),
        ("join=return", r"join=return: this fail point supports off, panic, pause, sleep"),
        ("train=error(EIO)", r"this fail point supports"),
        ("checkpoint.write=error(EIEIO)", r"'EIEIO' is not the name of a system error"),
        ("checkpoint.write=error", r"write error\(NAME\)"),
        ("train=sleep", r"write sleep\(MS\)"),
        ("train=sleep(soon)", r"'soon' is not a number of milliseconds"),
        ("train=panic(now)", r"write panic$"),
        ("train=1*off->", r"unknown action"),
        ("train=off;train=panic", r"train is given twice; for a sequence write train=A->B"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(text)
    assert str(caught.value).startswith("PFL_FAILPOINTS: ")
    assert "\n" not in str(caught.value)


def test_a_mistake_ends_the_command_with_that_line() -> None:
    env = {**os.environ, failpoints.VARIABLE: "checkpoint.renam=panic"}
    done = subprocess.run(
        [sys.executable, "-m", "pfl_node", "policies"], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"pfl-node: PFL_FAILPOINTS: unknown fail point .*\n", done.stderr)


def test_every_place_of_the_table_is_in_the_code_and_no_other() -> None:
    code = "\n".join(path.read_text() for path in ROOT.rglob("*.py") if path.name != "failpoints.py")
    used = set(re.findall(r'failpoint\("([\w.]+)"\)', code))
    steps = set(re.findall(r'failpoint\(f"\{what\}\.(\w+)"\)', code))
    assert steps == set(STEPS)
    assert set(re.findall(r'write_atomic\(.*what="(\w+)"\)', code)) | {"file"} == set(FILES)
    assert used | {f"{file}.{step}" for file in FILES for step in STEPS} == set(PLACES)
