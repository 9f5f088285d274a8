from __future__ import annotations

import os

import pytest

from tests.unit.cli.run_command import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command, with none of the machine's own PFL_ variables."""
    for variable in [v for v in os.environ if v.startswith("PFL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "100")
    return Shell(capsys)
