"""The flags of the daemon, and what `config` prints of them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from pfl_node import __version__
from pfl_node.cli.options import FLAGS
from pfl_node.settings.load import flag, load_settings
from pfl_node.settings.schema import keys
from tests.unit.cli.run_command import Shell

TOKEN = "a-token-of-sixteen-and-more"
FIXED = (
    "--config",
    "--set",
    "--peer-seed",
    "--listen",
    "--advertise",
    "--policy",
    "--task",
    "--rounds",
    "--data-dir",
)


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell("--version") == (0, f"pfl-node {__version__}\n", "")


@pytest.mark.parametrize("words", [("--help",), ("config", "--help")])
def test_the_help_names_every_flag_that_scripts_rely_on(shell: Shell, words: tuple[str, ...]) -> None:
    outcome = shell(*words)
    assert outcome.code == 0
    assert [f for f in (*FIXED, "--device", "--seed", "--insecure") if f not in outcome.out] == []


def test_every_flag_sets_a_key_that_exists_and_is_spelled_after_it() -> None:
    for f in FLAGS:
        assert f.key in keys()
        assert flag(f.key) == f.spelling


def test_every_flag_reaches_the_settings(shell: Shell) -> None:
    words = (
        "--peer-seed a:1 --peer-seed b:2 --listen 0.0.0.0:7000 --advertise c:7000 --policy el --task digits "
        "--rounds 4 --data-dir d "
        "--device cpu --seed 5 --name n --run r --relay --insecure --log-level debug --log-format json"
    )
    got = json.loads(shell("config", *words.split(), "--format", "json").out)
    assert got["peer_seed"] == ["a:1", "b:2"]
    assert (got["listen"], got["advertise"], got["insecure"]) == ("0.0.0.0:7000", "c:7000", True)
    assert (got["policy"]["name"], got["task"]["name"], got["rounds"]) == ("el", "digits", 4)
    assert (got["data_dir"], got["device"], got["seed"], got["name"], got["run"]) == ("d", "cpu", 5, "n", "r")
    assert got["log"] == {"level": "debug", "format": "json"}
    assert got["relay"]["serve"] is True


def test_file_environment_flag_and_set_win_in_this_order(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("rounds = 1\nseed = 1\nrun = 'file'\nname = 'file'\n")
    monkeypatch.setenv("PFL_SEED", "2")
    monkeypatch.setenv("PFL_RUN", "env")
    monkeypatch.setenv("PFL_NAME", "env")
    outcome = shell("config", "--config", str(file), "--run", "flag", "--name", "flag", "--set", "name=set")
    got = tomllib.loads(outcome.out)
    assert (got["rounds"], got["seed"], got["run"], got["name"]) == (1, 2, "flag", "set")


def test_config_shows_no_secret_and_its_file_can_still_be_used(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_HTTP__TOKEN", TOKEN)
    (tmp_path / "mine.py").write_text("def task(db_password: str, folder: str): ...\n")
    words = (
        "--task",
        f"{tmp_path}/mine.py:task",
        "--set",
        "task.db_password=hunter2",
        "--set",
        "task.folder=/data",
    )
    tree = json.loads(shell("config", *words, "--format", "json").out)
    assert (tree["http"]["token"], tree["task"]["db_password"]) == ("***", "***")
    said = shell("config", *words).out
    assert TOKEN not in said
    assert "hunter2" not in said
    assert said.count('"***"') == 2
    file = tmp_path / "again.toml"
    file.write_text(said)
    assert load_settings(config=file).http.token is None
    assert load_settings(config=file, environ={"PFL_HTTP__TOKEN": TOKEN}).http.token == TOKEN
    assert load_settings(config=file).task.options == {"folder": "/data"}


def test_a_mistaken_secret_is_not_repeated(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("[http]\ntoken = 1234567890123456\n")
    outcome = shell("config", "--config", str(file))
    assert outcome.code == 2
    assert "bad value *** for 'http.token'" in outcome.err
    assert "1234567890123456" not in outcome.err


def test_config_prints_the_policys_knobs_and_a_file_that_can_be_used_again(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "again.toml"
    file.write_text(shell("config", "--policy", "facade", "--set", "policy.k=3", "--set", "train.lr=0.2").out)
    settings = load_settings(config=file)
    assert settings.policy.options["k"] == 3
    assert settings.policy.options["warmup"] == 10
    assert settings.train.lr == 0.2
    assert shell("config", "--config", str(file)).out == file.read_text()
