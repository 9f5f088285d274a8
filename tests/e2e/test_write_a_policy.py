"""docs/write-a-policy.md, run as it stands there: its files are written, its commands are typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import DEADLINE, preloaded_command

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-policy.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
CONSOLES = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Each command with what the page says it prints."""
    found = []
    for block in CONSOLES:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, said = part.partition("\n")
            found.append((command, said.strip()))
    return found


def test_the_page_has_files_and_commands() -> None:
    assert FILES.keys() == {"fomo.py", "by_hand.py", "sam.py", "variates.py", "closer.py"}
    assert [command.split()[:2] for command, _ in commands()] == [
        ["pfl-node", "policies"],
        ["pfl-node", "sim"],
        ["pfl-node", "sim"],
        ["pfl-node", "swarm"],
        ["python", "by_hand.py"],
        ["pfl-node", "policies"],
        ["pfl-node", "chaos"],
        ["pfl-node", "sim"],
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("author")
    for name, text in FILES.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def compares(command: str) -> bool:
    """Three simulations of 20 nodes and 20 rounds."""
    return "--policy local,el" in command


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(*found, marks=[pytest.mark.slow] if compares(found[0]) else [], id=found[0])
        for found in commands()
    ],
)
def test_the_commands_of_the_page_work(folder: Path, command: str, said: str) -> None:
    done = typed(folder, command)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("change", "command", "says"),
    [
        ("", "pfl-node sim --policy fomo.py:Nobody", "Nobody"),
        ("", "pfl-node sim --policy fomo.py:Fomo --set policy.n=3", "policy.n is not a knob of Fomo"),
        ("weights, own)", "pfl-node sim --policy fomo.py:Fomo -n 3 --rounds 1", "failed (fomo.py, line "),
    ],
)
def test_a_mistake_in_the_file_is_one_line(
    folder: Path, tmp_path: Path, change: str, command: str, says: str
) -> None:
    text = FILES["fomo.py"].replace(change, "weights[1:] + [-1], own)") if change else FILES["fomo.py"]
    (tmp_path / "fomo.py").write_text(text, encoding="utf-8")
    done = typed(tmp_path, command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert says in done.stderr


def typed(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """As in a terminal whose PATH begins with this environment. Simulations need not import torch again."""
    program, *words = shlex.split(command)
    if (program, words[0]) == ("pfl-node", "sim"):
        return preloaded_command(*words, cwd=folder)
    here = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": here + os.pathsep + os.environ["PATH"]}
    return subprocess.run(
        [program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE * 4
    )
