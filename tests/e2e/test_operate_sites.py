"""docs/operate.md takes someone who has read nothing else from nothing to three sites that exchange models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.e2e.operate_lab import SITES, chapter
from tests.e2e.virtual_hosts import FLAGS, possible

ROOT = Path(__file__).parents[2]


def test_at_most_twelve_commands_are_typed() -> None:
    assert chapter().typed <= 12
    assert [command.split()[0] for command in chapter().commands] == [
        "pipx",
        "pfl-node",
        "pfl-bootstrap",
        "pfl-node",
        "pfl-node",
        "pfl-node",
        "pfl-node",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["", "south"], ids=["all can be dialled", "south is behind NAT"])
def test_the_commands_of_the_document_make_three_sites_that_exchange_models(tmp_path: Path, hidden: str) -> None:
    if not possible():
        pytest.skip("needs network namespaces, a bridge and mounts")
    if hidden and not which("nft"):
        pytest.skip("needs nft")
    (tmp_path / "lab").mkdir()
    words = [*FLAGS, sys.executable, "-m", "tests.e2e.operate_lab", str(tmp_path / "lab"), *filter(None, [hidden])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout.splitlines()[-1])
    rows = [line.split() for line in saw["peers"].splitlines()[1:]]
    alive = sorted(row[0] for row in rows if "alive" in row)
    assert alive[0].startswith("bootstrap")
    assert alive[1:] == sorted(SITES)
    for status in saw["status"]:
        assert len(status["models_received"]) == len(status["models_sent"]) == 2
        assert status["refused"] == {}
    for output in saw["outputs"].values():  # `join` runs `doctor`
        for name in ("settings", "certificate", "seeds", "clock", "data"):
            assert re.search(rf"^ok +{name} ", output, re.MULTILINE), output
    assert set(saw["files"]["north"]) >= {"pfl-node.toml", "pfl-node.service", "ward.py", "key.pem", "cert.pem"}
