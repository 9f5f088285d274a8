"""What there is to choose from, for people and for programs."""

from __future__ import annotations

import json

from pfl_node.policies import POLICIES
from tests.unit.cli.run import Shell


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
