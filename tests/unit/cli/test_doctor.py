"""`pfl-node doctor` before the first start, and for a node that does not answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.identities import Site
from tests.unit.cli.run_command import Shell


def test_a_site_is_checked_before_its_first_start_without_leaving_anything_behind(
    shell: Shell, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    answer = shell("doctor", "--listen", "127.0.0.1:0", "--data-dir", str(home), "--set", "round.every=10m")
    levels = {line.split()[1]: line.split()[0] for line in answer.out.splitlines()}
    assert levels == {
        "settings": "ok",
        "disk": "ok",
        "certificate": "ok",
        "key": "ok",
        "seeds": "waiting",
        "reachable": "waiting",
        "clock": "warn",
        "version": "ok",
        "data": "ok",
        "device": "ok",
        "pace": "ok",
    }
    assert answer.code == 0
    assert not home.exists()


def test_a_key_that_other_users_can_read_is_named_with_the_command(shell: Shell, tmp_path: Path) -> None:
    key = Site(tmp_path).member("ann").key
    key.chmod(0o640)
    answer = shell("doctor", "--tls", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "ann"))
    (line,) = [line for line in answer.out.splitlines() if line.split()[1] == "key"]
    assert line == f"warn     key          other users can read the private key {key} (mode 0640); chmod 600 {key}"
    assert "private key" not in answer.err


def test_a_seed_that_does_not_answer_fails_and_the_exit_code_says_so(shell: Shell) -> None:
    with socket.socket() as bound:  # nothing listens there
        bound.bind(("127.0.0.1", 0))
        seed = f"127.0.0.1:{bound.getsockname()[1]}"
        answer = shell("doctor", "--listen", "127.0.0.1:0", "--peer-seed", seed, "--json")
    found = json.loads(answer.out)
    (seeds,) = [check for check in found["checks"] if check["name"] == "seeds"]
    assert (answer.code, found["ok"], seeds["level"]) == (1, False, "fail")
    assert "start one of them" in seeds["todo"]


def test_a_mistake_in_the_settings_or_the_task_is_a_line_like_others(shell: Shell) -> None:
    wrong = shell("doctor", "--listen", "192.0.2.1:7946")
    assert wrong.code == 1
    assert wrong.out.startswith("fail     settings     listen '192.0.2.1:7946' is not loopback")
    task = shell("doctor", "--listen", "127.0.0.1:0", "--task", "nowhere.py:task")
    assert task.code == 1
    assert "nowhere.py" in next(line for line in task.out.splitlines() if line.startswith("fail"))


def test_a_node_that_does_not_answer_fails_in_one_line(shell: Shell) -> None:
    answer = shell("doctor", "127.0.0.1:9")
    assert answer.code == 1
    assert answer.out.startswith("fail     answers      127.0.0.1:9: nothing listens there")
    assert len(answer.out.splitlines()) == 1


def test_a_port_that_another_program_uses_is_named(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        answer = shell("doctor", "--listen", listen, "--timeout", "0.2")
    assert answer.code == 1
    line = answer.out.splitlines()[-1]
    assert line.startswith(f"fail     answers      {listen}: ")
    assert line.endswith(f"; {listen} is in use on this machine: by another program, unless this node runs")
