"""The verb that tries policies in runs in which things go wrong: what it prints, and what its exit code says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.unit.cli.run_command import Shell
from tests.unit.sim import broken_policies


def policy(name: str) -> str:
    return f"{Path(broken_policies.__file__)}:{name}"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Waits", "ends"),
        ("Assumes", "works"),
        ("Endless", "rounds"),
        ("Diverges", "model"),
        ("Spoils", "model"),
        ("Silent", "finishes"),
        ("GoesBack", "rounds"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_found_and_the_line_that_is_printed_repeats_it(
    name: str, rule: str, shell: Shell
) -> None:
    found = shell("chaos", "--policy", policy(name), "--schedules", "25")
    assert found.code == 1, found
    lines = [line.removeprefix("repeat").strip() for line in found.out.splitlines() if line.startswith("repeat")]
    again = shell(*shlex.split(lines[0])[1:])
    assert again.code == 1, again
    told = [line for line in again.out.splitlines() if line.startswith("broken")]
    assert told[0].split()[1] == f"{rule}:"
    assert told[0].removeprefix("broken").strip() in found.out


def test_a_policy_that_computes_for_ever_is_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_node.testing.schedules.trial.CPU_LIMIT", 1.0)
    found = shell("chaos", "--policy", policy("Computes"), "--seed", "0")
    assert found.code == 1
    assert "it has computed for 1 s without a step (broken_policies.py, line " in found.out


def test_a_policy_that_is_fine_is_not_blamed(shell: Shell) -> None:
    done = shell("chaos", "--policy", policy("Fine"), "--schedules", "10")
    assert (done.code, done.err) == (0, "")
    assert "hold, checked" in done.out


def test_one_schedule_is_told_in_full(shell: Shell) -> None:
    done = shell(
        "chaos", "--seed", "5", "--policy", "el", "--fault", "crash:n000@2.5", "--fault", "restart:n000@4"
    )
    assert (done.code, done.err) == (0, "")
    for said in (
        "seed 5: el",
        "faults    crash:n000@2.5 restart:n000@4",
        "crashed",
        "restarted",
        "messages",
        "holds",
    ):
        assert said in done.out


def test_no_faults_can_be_asked_for(shell: Shell) -> None:
    done = shell("chaos", "--seed", "5", "--policy", "el", "--fault", "none")
    assert done.code == 0
    assert "faults    none" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chaos --policy elk", "unknown policy 'elk': did you mean 'el'?"),
        ("chaos --policy ,", "--policy is empty"),
        ("chaos --schedules 3 --fault loss:0.5", "--fault applies to a single schedule"),
        ("chaos --seed 3 --fault crash:n009@1", "there is no node 'n009'"),
        ("chaos --seed 3 --policy el --set policy.degree=0", "policy.degree"),
        ("chaos --seed 3 --policy el --set round.patience=0", "round.patience"),
        ("chaos --seed 3 --policy el --set attack.kind=alie", "use `pfl-node sim` for attacks"),
        ("chaos --schedules 2 --policy el --set attack.kind=alie", "use `pfl-node sim` for attacks"),
    ],
)
def test_a_mistake_is_one_line(words: str, said: str, shell: Shell) -> None:
    assert said in shell.mistake(*words.split())


def test_what_the_user_sets_is_not_by_lot(shell: Shell) -> None:
    done = shell("chaos", "--seed", "3", "--policy", "el", "--set", "policy.degree=1", "--set", "round.patience=7")
    assert done.code == 0
    assert "degree=1" in done.out
