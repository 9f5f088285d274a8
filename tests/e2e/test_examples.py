"""Every example runs in the simulator with the command of its README and gives the output printed there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from pfl_node.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
NEEDS = {"frozen_resnet": "torchvision", "lora": "peft", "lightning": "lightning"}
NOT_FIGURES = {"run", "sent", "time"}


def figures(text: str) -> dict[str, str]:
    """The lines of a simulation's output by their first word."""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in text.strip().splitlines()}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_gives_the_output_of_its_readme(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if package := NEEDS.get(example.name):
        pytest.importorskip(package)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the task's folder is put there
    found = re.search(r"```\n\$ pfl-node ([^\n]*)\n(.*?)```", (example / "README.md").read_text(), re.DOTALL)
    assert found
    assert main(shlex.split(found[1])) == 0
    printed, real = figures(found[2]), figures(capsys.readouterr().out)
    assert printed.keys() == real.keys()
    assert (printed["run"], printed["sent"]) == (real["run"], real["sent"])
    for name in printed.keys() - NOT_FIGURES:
        then, now = (float(figure.rstrip("%")) for figure in (printed[name], real[name]))
        assert now == pytest.approx(then, rel=0.1), name  # processors round differently


def test_every_example_has_one_task_file_and_a_short_readme() -> None:
    for folder in sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir()):
        files = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
        assert len(files) == 2, files
        assert files[0] == "README.md"
        text = (folder / "README.md").read_text()
        assert len(text.split("```")[0].splitlines()) <= 10, folder
