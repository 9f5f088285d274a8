"""What there is to choose from, for people and for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pfl_node.policies import POLICIES
from tests.unit.cli.run_command import Shell


def test_policies_as_json_have_names_summaries_and_knobs(shell: Shell) -> None:
    found = {p["name"]: p for p in json.loads(shell("policies", "--format", "json").out)["policies"]}
    assert list(found) == list(POLICIES)
    assert all(p["summary"] for p in found.values())
    knobs = {k["name"]: k for k in found["pens"]["options"]}
    assert knobs["m"]["default"] == 2
    assert knobs["m"]["type"] == "a whole number at least 1"
    assert knobs["m"]["help"]


def test_policies_as_a_table_have_a_line_each(shell: Shell) -> None:
    head, *lines = shell("policies").out.splitlines()
    assert head.split()[0] == "policy"
    assert [line.split()[0] for line in lines] == list(POLICIES)


def test_tasks_say_what_they_are_and_take(shell: Shell) -> None:
    digits = json.loads(shell("tasks", "--format", "json").out)["tasks"][0]
    assert digits["name"] == "digits"
    assert "handwritten" in digits["summary"]
    assert "angles" in [o["name"] for o in digits["options"]]
    assert "angles=" in shell("tasks").out


def test_one_policy_is_shown_with_a_line_for_each_knob(shell: Shell) -> None:
    summary, _, head, *lines = shell("policies", "pens").out.splitlines()
    assert summary.startswith("PENS")
    assert head.split() == ["knob", "type", "default", "description"]
    assert [line.split()[0] for line in lines] == list(POLICIES["pens"].Config.model_fields)
    assert [p["name"] for p in json.loads(shell("policies", "el", "--format", "json").out)["policies"]] == ["el"]


def test_a_policy_of_ones_own_is_checked_with_a_line_for_each_rule(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = "from pfl_node.policies.local import Local\nclass Mine(Local):\n    rest = [1, 2]\n"
    file = tmp_path / "mine.py"
    file.write_text(text + "    async def check_stop(self):\n        self.rest[self.round]\n")
    done = shell("policies", f"{file}:Mine", "--check")
    assert done.code == 1
    assert [line.partition("  ")[0] for line in done.out.splitlines()].count("ok") > 0
    assert (
        "broken  works in a swarm of 1: your code failed (mine.py, line 5): IndexError: list index out of range"
        in done.out
    )
    done = shell("policies", "local", "--check", "--format", "json")
    assert done.code == 0
    assert {row["broken"] for row in json.loads(done.out)["rules"]} == {None}


def test_a_check_needs_a_name(shell: Shell) -> None:
    done = shell("policies", "--check")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--check needs a policy: pfl-node policies NAME --check" in done.err


def test_one_task_is_shown_with_a_line_for_each_option(shell: Shell) -> None:
    _, _, head, *lines = shell("tasks", "digits").out.splitlines()
    assert head.split() == ["option", "type", "default"]
    options = [line.split()[0] for line in lines]
    assert options == ["angles", "sizes", "samples", "model", "auxiliary", "alpha", "test_mix"]


def test_a_task_of_ones_own_can_be_looked_at(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    file.write_text('def cells(folder, noise: float = 0.5, seed=0):\n    """Cells.\n\n    More."""\n')
    found = json.loads(shell("tasks", f"{file}:cells", "--format", "json").out)["tasks"]
    assert found == [
        {
            "name": f"{file}:cells",
            "summary": "Cells.",
            "options": [
                {"name": "folder", "type": "", "default": None},
                {"name": "noise", "type": "float", "default": 0.5},
            ],
        }
    ]
