"""What an operator meets: signals, a machine that is not ready yet, backups, names; as docs/operate.md says."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Process, preloaded_command, processes, until

DOC = Path(__file__).parents[2] / "docs" / "operate.md"
NODE = ("--listen", "127.0.0.1:0", "--policy", "local", "--log-format", "json", "--data-dir", "pfl-node")
SETS = ("--set", "task.samples=40", "--set", "start.wait=0", "--set", "store.checkpoint_every=10")
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes(tmp_path, preloaded=True) as starter:
        yield starter


def learning(start: Start) -> Process:
    node = start("pfl_node", *NODE, *SETS)
    until(lambda: '"event": "round"' in node.output, node)
    return node


def test_a_machine_that_is_not_ready_is_exit_code_1_and_one_line(tmp_path: Path) -> None:
    """The unit restarts a node after any code but 2."""
    unit = DOC.read_text()
    assert "RestartPreventExitStatus=2" in unit
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for words in (
            ("--listen", f"127.0.0.1:{port}"),
            ("--listen", "203.0.113.9:7000", "--insecure", "--advertise", "203.0.113.9:7000"),
            ("--data-dir", tmp_path / "file" / "below"),
            ("--listen", "127.0.0.1:0", "--tls", "--data-dir", tmp_path / "mounted-later"),
            ("--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"),
        ):
            done = preloaded_command(*words, "--log-format", "console", cwd=tmp_path)
            assert done.returncode == 1, (words, done.stderr)
            assert done.stderr.count("\n") == 1, done.stderr


def test_what_a_node_writes_is_private(start: Start, tmp_path: Path) -> None:
    node = learning(start)
    until(lambda: list((tmp_path / "pfl-node").glob("checkpoint-*.safetensors")), node)
    node.popen.send_signal(signal.SIGTERM)
    node.wait()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "pfl-node").iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE((tmp_path / "pfl-node").stat().st_mode) == 0o700


def test_the_documented_backup_is_whole_and_private_while_the_node_runs(start: Start, tmp_path: Path) -> None:
    script = re.search(r"```\n(umask 077\n.*?)```", DOC.read_text(), re.S)
    assert script
    words = script[1].replace("/var/lib", str(tmp_path))
    node = learning(start)
    until(lambda: list((tmp_path / "pfl-node").glob("checkpoint-*.safetensors")), node)
    for n in range(10):
        where = tmp_path / f"backup-{n}"
        where.mkdir()
        subprocess.run(["sh", "-ec", words], cwd=where, check=True, capture_output=True, timeout=60)
        [archive] = where.iterdir()
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        subprocess.run(["tar", "xzf", archive], cwd=where, check=True)
        assert list((where / "pfl-node").glob("checkpoint-*.safetensors"))
    node.popen.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    again = start("pfl_node", *NODE[:-1], where / "pfl-node", *SETS, "--set", "policy.name=local")
    again.says("continuing from the checkpoint")


def test_a_name_of_the_hosts_file_is_found_though_the_name_server_is_dead(start: Start, tmp_path: Path) -> None:
    node = learning(start)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost a-site.example\n")
    (tmp_path / "resolv").write_text("nameserver 192.0.2.53\n")  # nobody answers there
    ping = f"{sys.executable} -m pfl_node ping a-site.example:{node.address.rpartition(':')[2]}"
    script = f"mount --bind hosts /etc/hosts && mount --bind resolv /etc/resolv.conf && exec {ping}"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs mount namespaces")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
