"""A user's mistake is one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from tests.unit.cli.run_command import Shell


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pers 127.0.0.1:1", "no such verb 'pers': did you mean 'peers'?"),
        ("--rond 3", "no such option --rond: did you mean '--rounds'?"),
        ("--rond=3", "no such option --rond: did you mean '--rounds'?"),
        ("peers 127.0.0.1:1 --fromat json", "no such option --fromat: did you mean '--format'?"),
        ("config --polcy pens", "no such option --polcy: did you mean '--policy'?"),
        ("peers", "missing argument 'HOST:PORT' (see pfl-node peers --help)"),
        ("peers a:1 b:2", "got unexpected extra argument(s) (b:2) (see pfl-node peers --help)"),
        ("--rounds", "option '--rounds' requires an argument (see pfl-node --help)"),
        ("--policy pens config", "options go after the verb: pfl-node config [OPTIONS]"),
        ("--rounds many", "bad value 'many' for 'rounds' in --rounds: must be a whole number above 0"),
        ("config --seed -1", "bad value '-1' for 'seed' in --seed: must be a whole number at least 0"),
        (
            "config --device gpu",
            "bad value 'gpu' for 'device' in --device: must be auto, cpu, cuda, cuda:N, mps, xpu, or cuda:auto, "
            "which spreads the nodes of a run over the GPUs",
        ),
        (
            "config --log-level loud",
            "bad value 'loud' for 'log.level' in --log-level: must be one of debug, info, warning, error",
        ),
        ("config --set train.lrr=1", "unknown setting 'train.lrr' in --set: did you mean 'train.lr'?"),
        ("config --set lr", "--set 'lr' must be KEY=VALUE, for example --set train.lr=0.1"),
        ("config --config gone.toml", "cannot read gone.toml: No such file or directory"),
        ("config --policy pns", "unknown policy 'pns': did you mean 'pens'?"),
        ("config --set policy.mm=1", "policy.mm is not a knob of Pens: did you mean 'm'?"),
        ("--listen 127.0.0.1", "listen '127.0.0.1' must be HOST:PORT, for example 127.0.0.1:7000 or [::1]:7000"),
        ("--peer-seed 127.0.0.1:x", "peer_seed '127.0.0.1:x': the port must be a number from 1 to 65535"),
        (
            "--listen 10.0.0.1:7000",
            "listen '10.0.0.1:7000' is not loopback, so connections need TLS: give --data-dir DIR, where "
            "`pfl-node ca init` and `pfl-node ca issue --data-dir DIR` put a certificate (or --key, --cert and "
            "--ca), or add --insecure if you trust this network",
        ),
        ("status 127.0.0.1", "address '127.0.0.1' must be HOST:PORT, for example 127.0.0.1:7000 or [::1]:7000"),
        ("sim --listen 127.0.0.1:0", "no such option --listen: it is for a single node, pfl-node sim runs many"),
        (
            "peers a:1 --listen b:2",
            "no such option --listen: known: --ca, --cert, --data-dir, --format, --key, --timeout",
        ),
        ("policies pns", "unknown policy 'pns': did you mean 'pens'?"),
        ("tasks digts", "unknown task 'digts'; did you mean 'digits'? (or FILE.py:FUNCTION)"),
        ("sim --nodes 3 --fault crsh:n001@3", "fault 'crsh:n001@3': unknown kind 'crsh'; did you mean 'crash'?"),
    ],
)
def test_each_mistake_is_one_line(shell: Shell, words: str, line: str) -> None:
    assert shell.mistake(*words.split()) == line


@pytest.mark.parametrize(
    "words", ["sim --nodes 0", "sim --nodes x", "ping a:1 --count 0", "wait a:1 --state bored"]
)
def test_a_value_that_an_option_cannot_have_names_the_option(shell: Shell, words: str) -> None:
    verb, *_, option, _value = words.split()
    line = shell.mistake(*words.split())
    assert f"'{option}'" in line
    assert line.endswith(f"(see pfl-node {verb} --help)")


def test_a_task_that_does_not_exist_names_the_nearest(shell: Shell) -> None:
    assert "did you mean 'digits'?" in shell.mistake("config", "--task", "digts")
    assert "did you mean 'angles'?" in shell.mistake("config", "--set", "task.angels=[0]")


def test_an_audit_checks_all_it_was_given_before_it_attacks(shell: Shell) -> None:
    assert shell.mistake("lab", "audit", "--policy", "elk") == "unknown policy 'elk': did you mean 'el'?"
    assert "no peer would get one" in shell.mistake("lab", "audit", "--set", "privacy.oracle_epsilon=1")


@pytest.mark.parametrize("verb", ["", "config", "sim", "swarm", "demo"])
def test_a_task_of_ones_own_that_cannot_be_read_is_known_before_anything_starts(shell: Shell, verb: str) -> None:
    line = shell.mistake(*verb.split(), "--task", "nothing.py:task")
    assert line.startswith("task nothing.py:task: there is no file nothing.py (looked in ")


def test_a_failure_in_a_policy_of_ones_own_is_one_line_that_says_where(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    file.write_text(
        "from pfl_node.policies.base import Policy\n"
        "class Mine(Policy):\n"
        "    async def main(self):\n"
        "        return 1 / 0\n"
    )
    line = shell.mistake("sim", "--nodes", "1", "--rounds", "1", "--policy", f"{file}:Mine")
    assert "failed (mine.py, line 4): ZeroDivisionError: division by zero" in line


def test_a_bug_of_ours_keeps_its_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_node.cli.app", json.dumps)  # which cannot take what it is given
    with pytest.raises(TypeError):
        shell("config")


def test_a_mistake_in_a_file_names_the_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("[train]\nlrr = 1\n")
    assert shell.mistake("config", "--config", str(file)) == (
        f"unknown setting 'train.lrr' in {file}: did you mean 'train.lr'?"
    )


def test_with_debugging_on_a_mistake_is_a_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_DEBUG", "1")
    with pytest.raises(ConfigError):
        shell("config", "--set", "x")
