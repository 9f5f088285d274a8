"""Light verbs stay light: no torch, and what only looks at a running node needs no numpy either."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pfl_node.cli import main
main(sys.argv[1].split())
heavy = ("torch", "numpy", "grpc", "rich", "sklearn", "pfl_node.settings")
print("loaded:", *[name for name in heavy if name in sys.modules])
"""


def loaded_by(words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_version_loads_nothing() -> None:
    assert loaded_by("--version") == []


def test_a_question_to_a_node_loads_grpc_and_no_numbers() -> None:
    assert loaded_by("status 127.0.0.1:1") == ["grpc"]


@pytest.mark.parametrize("words", ["policies", "tasks", "config", "--help"])
def test_looking_things_up_loads_no_torch(words: str) -> None:
    assert not {"torch", "grpc", "sklearn"} & set(loaded_by(words))


def test_the_module_is_a_program_with_exit_codes() -> None:
    command = [sys.executable, "-m", "pfl_node"]
    fine = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    mistake = subprocess.run([*command, "polices"], capture_output=True, text=True, timeout=60)
    failure = subprocess.run([*command, "ping", "127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert [p.returncode for p in (fine, mistake, failure)] == [0, 2, 1]
    assert mistake.stderr == "pfl-node: no such verb 'polices': did you mean 'policies'?\n"
    assert failure.stderr == "pfl-node: 127.0.0.1:1: nothing listens there (connection refused)\n"
