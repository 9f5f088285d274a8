"""What is sent to sites: shared settings and the files of the task, nothing of the operator's machine."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from shutil import which

import pytest

from pfl_node.enrolment.frames import OPERATOR_LIMIT, frame
from pfl_node.enrolment.site_files import config_text, unit_text
from pfl_node.enrolment.site_plan import FILES_LIMIT, SitePlan
from pfl_node.errors import ConfigError
from pfl_node.settings.load import load_settings


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "ward.py").write_text("import os\nfrom readers import scans\n\ndef ward(folder): ...\n")
    (tmp_path / "readers.py").write_text("scans = 1\n")
    file = tmp_path / "wards.toml"
    file.write_text(
        f'run = "wards"\npolicy = "el"\n[task]\nname = "{tmp_path}/ward.py:ward"\n[start]\nwait = 600.0\n'
    )
    return file


def test_a_plan_has_the_task_and_the_files_beside_it_that_it_imports(shared: Path, tmp_path: Path) -> None:
    plan = SitePlan.of(load_settings(config=shared))
    assert sorted(plan.files) == ["readers.py", "ward.py"]
    assert plan.settings["task"] == {"name": "ward.py:ward"}
    assert str(tmp_path) not in plan.encode()
    there = plan.at(Path("/srv/pfl-east"))
    assert there["task"] == {"name": "/srv/pfl-east/ward.py:ward"}
    assert tomllib.loads(config_text(there)) == there


def test_a_plan_is_read_back_and_any_change_changes_its_digest(shared: Path) -> None:
    plan = SitePlan.of(load_settings(config=shared))
    assert SitePlan.decode(plan.encode()) == plan
    other = SitePlan(plan.settings, {**plan.files, "ward.py": plan.files["ward.py"] + "\n"})
    slower = SitePlan({**plan.settings, "policy": {"name": "pens"}}, plan.files)
    assert len({plan.digest, other.digest, slower.digest}) == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('listen = "192.0.2.2:7946"', "'listen' is not the same at all sites"),
        ('name = "north"', "'name' is not the same at all sites"),
        ("insecure = true", "'insecure' is not the same at all sites"),
        ('http = { token = "0123456789abcdef" }', "'http.token' looks like a secret"),
        ('task = { name = "digits", api_key = "x" }', "'task.api_key' looks like a secret"),
        ('task = "missing.py:ward"', "cannot read missing.py"),
        ('task = "not-a-module.py:ward"', "needs a name of letters, digits and _"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "wards.toml"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=problem):
        SitePlan.of(load_settings(config=file))


def test_files_that_fit_fit_into_a_message_whatever_they_contain(tmp_path: Path) -> None:
    task, file = tmp_path / "ward.py", tmp_path / "wards.toml"
    file.write_text(f'task = "{task}:ward"\n')
    task.write_text("#" + '"' * (FILES_LIMIT - 1))
    assert len(frame({"plan": SitePlan.of(load_settings(config=file)).encode()})) < OPERATOR_LIMIT * 3 // 4
    task.write_text("#" * (FILES_LIMIT + 1))
    with pytest.raises(ConfigError, match=f"{FILES_LIMIT} can be sent"):
        SitePlan.of(load_settings(config=file))


def test_a_site_may_use_its_own_copy_of_the_same_task_only(shared: Path, tmp_path: Path) -> None:
    plan = SitePlan.of(load_settings(config=shared))
    copy = tmp_path / "own"
    copy.mkdir()
    for name, text in plan.files.items():
        (copy / name).write_text(text)
    own = plan.with_own_task(f"{copy}/ward.py:ward")
    assert own.settings["task"]["name"] == f"{copy}/ward.py:ward"
    assert own.files == {}
    with pytest.raises(ConfigError, match=r"--task .*/ward\.py: write FILE:NAME"):
        plan.with_own_task(f"{copy}/ward.py")
    (copy / "readers.py").write_text("scans = 2\n")
    with pytest.raises(ConfigError, match=r"is another task than that of the token \(ward\.py:ward\)"):
        plan.with_own_task(f"{copy}/ward.py:ward")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"settings": 1, "files": {}}', '{"settings": {}, "files": ["x"]}']
)
def test_a_plan_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="the settings of the invitation cannot be read"):
        SitePlan.decode(text)


@pytest.mark.parametrize("name", ["../ward.py", "a/b.py", "key.pem", ".py", "a b.py"])
def test_a_plan_writes_python_files_in_its_own_directory_only(name: str) -> None:
    with pytest.raises(ConfigError, match="do not trust it"):
        SitePlan.decode(SitePlan({}, {name: "x"}).encode())


def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "pfl-node.service"
    here = {"name": "east", "run": "wards 100%", "user": "root", "command": Path("/bin/true")}
    unit.write_text(unit_text(**here, directory=tmp_path, gpu=False))  # type: ignore[arg-type]
    assert "PrivateDevices=true" in unit.read_text()
    assert "PrivateDevices" not in unit_text(**here, directory=tmp_path, gpu=True)  # type: ignore[arg-type]
    assert "ProtectHome=read-only" in unit_text(**here, directory=Path("/home/ann/x y"), gpu=False)  # type: ignore[arg-type]
    if which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
