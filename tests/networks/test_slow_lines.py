"""Slow lines with default settings: the kernel's token bucket limits what each site sends, and every packet takes
50 ms. The lab of `tests/netns` is used, because its router delays packets where the kernel has no netem."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.netns.netns_lab import PORT, Host, Lab

pytestmark = pytest.mark.netns

TASK = Path(__file__).with_name("large_model.py")
DELAY = 0.05  # seconds, one way
OVERHEAD = 1.06  # bytes on the wire for each byte of a model: packets and HTTP/2
IN_FLIGHT = 4e6  # bytes that are lost with a connection: what both ends have buffered


class Site:
    """A host of the lab and what its node reports."""

    def __init__(self, lab: Lab, host: Host) -> None:
        self.lab = lab
        self.host = host
        self.folder = lab.folder / host.name

    def start(self, megabytes: float, policy: str, seed: Host) -> None:
        """With default settings, except that the first round waits for all."""
        host, count = self.host, len(self.lab.hosts)
        words = ["--listen", host.listen, "--insecure", "--data-dir", self.folder, "--name", host.name]
        if host is not seed:
            words += ["--peer-seed", seed.listen]
        sets = [f"task.megabytes={megabytes}", f"start.peers={count - 1}", "start.wait=60"]
        what = ["--policy", policy, "--task", f"{TASK}:large", "--log-format", "json"]
        self.lab.start(host, "pfl_node", *words, *what, *(word for one in sets for word in ("--set", one)))

    def journal(self, event: str) -> list[dict[str, Any]]:
        file = self.folder / "journal.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [row for row in (json.loads(line) for line in lines if line.endswith("}")) if row["event"] == event]

    def status(self) -> dict[str, Any]:
        words = ("-m", "pfl_node", "status", self.host.listen, "--format", "json")
        return dict(json.loads(self.lab.inside(self.host, sys.executable, *words) or "{}"))

    @property
    def sent(self) -> int:
        return self.lab.sent_bytes(self.host)

    def seconds(self) -> list[float]:
        """The duration of each round."""
        times = [row["time"] for row in (*self.journal("started"), *self.journal("round"))]
        return [round(b - a, 1) for a, b in pairwise(times)]


@pytest.fixture
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Site]]:
    """So many sites with so fast an uplink each."""
    if os.getpid() != 1:
        pytest.skip("runs in namespaces of its own: make test-netns")
    count, rate = request.param
    with Lab(count, tmp_path / "lab") as lab:
        lab.weather(delay=DELAY)
        for host in lab.hosts:
            lab.uplink(host, rate)
        yield [Site(lab, host) for host in lab.hosts]


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.5)


@pytest.mark.parametrize("sites", [(3, "1mbit")], indirect=True)
@pytest.mark.parametrize(("policy", "rounds"), [("el", 4), ("random", 4), ("pens", 1)])
def test_every_round_exchanges_models_over_1_mbit(sites: list[Site], policy: str, rounds: int) -> None:
    """A round of `pens` is up to ten models."""
    for site in sites:
        site.start(10.0, policy, sites[0].host)
    until(lambda: all(len(site.journal("round")) >= rounds for site in sites), 900, f"{rounds} rounds")
    for site in sites:
        done, received = site.journal("round"), sum(site.status()["models_received"].values())
        print(f"{policy}, {site.host.name}: rounds of {site.seconds()} s, {received} models received")
        assert not site.journal("given_up")
        assert all(row.get("from", True) for row in done)  # whose models were merged
        assert received >= len(done) * (len(sites) - 1 if policy == "el" else 1)


@pytest.mark.parametrize("sites", [(2, "10mbit")], indirect=True)
def test_a_100_mb_model_whose_connection_breaks_in_the_middle_is_not_sent_twice(sites: list[Site]) -> None:
    size = 100e6
    for site in sites:
        site.start(size / 1e6, "el", sites[0].host)
    until(lambda: all(site.sent > size / 2 for site in sites), 300, "half of the models sent")
    for site in sites:
        site.lab.inside(site.host, "ss", "--kill", "dport", "=", f":{PORT}")
    until(lambda: all(site.journal("round") for site in sites), 300, "a round")
    for site in sites:
        status, sent = site.status(), site.sent
        print(f"{site.host.name}: {sent / 1e6:.1f} MB sent, refused {status['refused']}")
        assert status["refused"]["truncated"] >= 1  # the connection did break
        assert sum(status["models_received"].values()) >= 1
        assert not site.journal("given_up")
        assert sent < OVERHEAD * size + IN_FLIGHT
