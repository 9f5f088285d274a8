"""The lab itself and small swarms in it. Needs namespaces: `make test-chaos`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import until
from tests.netns.namespaces import ROOT, flags, missing

HOURS = 1800

pytestmark = [pytest.mark.chaos]


@pytest.fixture(autouse=True)
def _lab_can_run() -> None:
    if lack := missing():
        pytest.skip(lack)


def measure(tmp_path: Path, *words: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the figures by name."""
    path = tmp_path / "figures.json"
    line = [sys.executable, "-m", "tests.netns.measure", *map(str, words), "--json", str(path)]
    code = subprocess.run(line, cwd=ROOT, timeout=HOURS, check=False).returncode
    return code, {row["what"].strip(): row for row in json.loads(path.read_text())}


PROBE = """
import socket, sys, time
from pathlib import Path
from tests.netns.netns_lab import Lab
from tests.netns.tun import enter

def datagrams_received(lab, a, b, count):
    '''How many of so many datagrams from a reach b.'''
    enter(b.namespace)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((b.address, 9))
    receiver.settimeout(2)
    enter(a.namespace)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(count):
        sender.sendto(b"x", (b.address, 9))
    received = 0
    try:
        while True:
            receiver.recv(9)
            received += 1
    except TimeoutError:
        return received

with Lab(50, Path(sys.argv[1])) as lab:
    first, *_, last = lab.hosts
    print(datagrams_received(lab, first, last, 100))
    lab.weather(delay=0.01, loss=0.5)
    print(datagrams_received(lab, first, last, 200))
    lab.weather()
    lab.split(lab.hosts[:10], lab.hosts[10:])
    print(datagrams_received(lab, first, last, 100), datagrams_received(lab, first, lab.hosts[9], 100))
    lab.heal()
    print(datagrams_received(lab, last, first, 100))
    if len(sys.argv) > 2:
        print("waiting", flush=True)
        time.sleep(600)
"""


def test_fifty_hosts_reach_each_other_as_the_weather_says(tmp_path: Path) -> None:
    line = [*flags(), sys.executable, "-c", PROBE, str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=HOURS, check=True)
    all_of_them, some, parted, healed = done.stdout.splitlines()
    assert (all_of_them, parted, healed) == ("100", "0 100", "100")
    assert 60 < int(some) < 140


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_lab_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    line = [*flags(), sys.executable, "-c", PROBE, str(tmp_path), "wait"]
    lab = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert lab.stdout
    while lab.stdout.readline() != "waiting\n":
        assert lab.poll() is None
    inside = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(lab.pid)], capture_output=True, text=True, check=True
    )
    namespace = os.readlink(f"/proc/{inside.stdout.strip()}/ns/pid")
    if number is signal.SIGKILL:
        lab.kill()  # of the outermost process only
    else:
        os.killpg(lab.pid, number)
    lab.wait(60)
    lab.stdout.close()
    until(lambda: not in_namespace(namespace))


def in_namespace(namespace: str) -> list[str]:
    """Processes that are in it."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if os.readlink(process / "ns" / "pid") == namespace:
                found.append(process.name)
    return found


def test_fifty_members_on_a_bad_network(tmp_path: Path) -> None:
    """50 ms each way and 2 % loss: cold start, a quiet while, kill -9."""
    code, found = measure(tmp_path, "views", "--light", "--delay", 50, "--loss", 2, "--watch", 30)
    assert code == 0, found


def test_a_partition_of_fifty_members_heals(tmp_path: Path) -> None:
    code, found = measure(tmp_path, "partition", "--light", "--parted", 60)
    assert code == 0, found


def test_a_few_nodes_are_killed_and_come_back(tmp_path: Path) -> None:
    """Too short and too few to compare accuracies."""
    _, found = measure(tmp_path, "churn", "--nodes", 6, "--seconds", 60, "--every", 10)
    assert found["false deaths"]["reached"]
    assert found["exit codes at the end"]["reached"]
