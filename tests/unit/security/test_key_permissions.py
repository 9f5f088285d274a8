"""Which private keys a node warns of, and the remedy in the warning."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pfl_node.daemon.tls_setup import tls_of
from pfl_node.security.key_permissions import exposed_key
from pfl_node.security.trust import Trust
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.store.data_dir import DataDir
from tests.identities import Site

Put = Callable[[int], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def at(mode: int) -> Path:
        path = tmp_path / "key.pem"
        path.touch()
        path.chmod(mode)
        return path

    return at


@pytest.fixture
def someone_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)


def warning(path: Path) -> str | None:
    exposed = exposed_key(path)
    return str(exposed).replace(str(path), "KEY") if exposed else None


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_key_that_only_its_owner_reads_is_private(put: Put, mode: int) -> None:
    assert warning(put(mode)) is None


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o604, 0o660])
def test_an_own_key_with_any_access_for_others_is_exposed(put: Put, mode: int) -> None:
    assert warning(put(mode)) == f"other users can read the private key KEY (mode 0{mode:o}): chmod 600 KEY"


@pytest.mark.usefixtures("someone_elses")
@pytest.mark.parametrize("mode", [0o440, 0o640, 0o600])
def test_the_group_may_read_a_key_of_root(put: Put, mode: int) -> None:
    assert warning(put(mode)) is None


@pytest.mark.usefixtures("someone_elses")
@pytest.mark.parametrize("mode", [0o444, 0o644, 0o660])
def test_nobody_else_may_read_a_key_of_root_and_nobody_may_write_it(put: Put, mode: int) -> None:
    assert warning(put(mode)) == f"other users can read the private key KEY (mode 0{mode:o}): chmod 640 KEY"


@pytest.mark.usefixtures("someone_elses")
def test_a_mounted_secret_needs_another_mode_at_its_mount(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert str(warning(put(0o444))).endswith(": mount it with mode 0440 (secrets of Kubernetes: defaultMode)")


def test_a_key_that_is_not_there_is_the_error_of_another_place(tmp_path: Path) -> None:
    assert exposed_key(tmp_path / "key.pem") is None


def test_the_command_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "ward 3.pem"
    path.touch(0o644)
    path.chmod(0o644)
    assert str(exposed_key(path)).endswith(f"chmod 600 '{path}'")


def node_settings(directory: Path) -> Settings:
    return load_settings(overrides={"data_dir": directory, "listen": "127.0.0.1:0", "tls.on": True})


def test_a_node_warns_once_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = Site(tmp_path).member("ann").key
    key.chmod(0o644)
    home = DataDir.open(tmp_path / "ann")
    tls_of(node_settings(tmp_path / "ann"), home)
    home.close()
    assert caplog.messages == [f"other users can read the private key {key} (mode 0644): chmod 600 {key}"]


def test_a_node_warns_of_a_key_that_was_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path)
    trust = Trust(site.member("ann"))
    site.member("ann")
    trust.files.key.chmod(0o640)
    assert "certificate" in trust.refresh()
    assert any("chmod 600" in line for line in caplog.messages)
