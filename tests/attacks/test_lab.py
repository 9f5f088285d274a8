"""Somebody else's results and specs, opened for reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.conftest import Figure
from tests.e2e.processes import own_process_command
from tests.unit.lab.made_results import result


@pytest.mark.parametrize("verb", ["show", "report", "compare"])
def test_reading_results_does_not_import_what_they_name(tmp_path: Path, figure: Figure, verb: str) -> None:
    ran, evil = tmp_path / "ran", tmp_path / "evil.py"
    evil.write_text(f"open({str(ran)!r}, 'w')\n")
    folder = result(tmp_path, plots="[]")
    for file in (folder / "spec.toml", *folder.glob("**/settings.json")):
        text = file.read_text().replace('"local"', f'"{evil}:Evil"').replace('"digits"', f'"{evil}:task"')
        file.write_text(text)
    words = {"show": [folder / "spec.toml"], "report": [folder], "compare": [folder, folder]}[verb]
    done = own_process_command("lab", verb, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FACADE" in done.stdout
    assert not ran.exists()
    figure(f"`lab {verb}` of somebody's spec or results", "runs their code", f"{int(ran.exists())} files ran")
