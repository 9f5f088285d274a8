"""A site behind a NAT, without a relay: it is told soon, and the others go on as without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.networks.internet import PUBLIC, Host, Internet
from tests.networks.programs import ENVIRONMENT, Program, Swarm, until

pytestmark = pytest.mark.netns

TOLD = 15.0  # seconds
SLOWER = 1.10
WINDOW = 40.0  # seconds with and without the site
SETTLED = 10.0  # seconds after which nobody suspects it any more
SETTINGS = ("train.init=common", "eval.every=1000", "start.peers=2", "start.wait=60")
BACK = 60.0  # seconds, on a busy machine
CLOSED = """
table ip closed {
  chain into { type filter hook input priority 0; policy accept; iifname "wan" tcp dport 7946 drop; }
}
"""
PACE = "round.every=0.4"  # so that the speed of the machine does not decide
UNPACED = bool(os.environ.get("UNPACED"))  # the others do not pause: their times are printed, not judged


@pytest.mark.parametrize("policy", ["el", "random"])
def test_a_site_behind_nat_is_told_and_does_not_delay_the_others(
    internet: Internet, swarm: Swarm, policy: str
) -> None:
    hosts = [internet.public(name) for name in ("north", "east", "south")]
    for host in hosts:
        _discard_what_is_private(host)
    seeds = [word for host in hosts for word in ("--peer-seed", f"{host.address}:7946")]
    sets = [word for setting in (*SETTINGS, PACE) for word in ("--set", setting)]
    theirs = sets[:-2] if UNPACED else sets  # without PACE
    others = [swarm.node(host, "--policy", policy, *seeds, *theirs) for host in hosts]
    until(lambda: all(len(node.rounds()) > 5 for node in others), 120, "the others do rounds")
    time.sleep(WINDOW)
    west = swarm.node(internet.behind_nat("west"), "--policy", policy, *seeds, *sets)
    until(lambda: "cannot reach you at 192.168.50.2:7946" in west.log(), 90, "west is told")
    joined, told = _first(west, "joined"), _first(west, "cannot reach you")
    time.sleep(max(0.0, joined + WINDOW - time.time()))
    print(f"\n{policy}: west was told {told - joined:.1f} s after it had joined")
    assert told - joined <= TOLD
    for node in others:
        without, beside = _seconds(node, joined - WINDOW, joined), _seconds(node, joined, joined + WINDOW)
        print(f"{policy}: a round of {node.name} takes {without:.3f} s without west, {beside:.3f} s beside it")
        assert UNPACED or beside <= SLOWER * without
        assert not [at for at, event in _said(node) if event == "suspected" and at > told + SETTLED]
    assert west.status()["health"]["level"] == "fail"
    lines = _doctor(west)
    print(*lines, sep="\n")
    assert [line.split()[0] for line in lines if line.split()[1] == "reachable"] == ["fail"]
    assert [node.status()["health"]["level"] for node in others] == ["ok"] * 3


def test_a_site_whose_port_is_closed_for_a_while_is_told_and_is_back_soon_after_it_is_opened(
    internet: Internet, swarm: Swarm
) -> None:
    hosts = [internet.public(name) for name in ("north", "east", "south")]
    seeds = [word for host in hosts for word in ("--peer-seed", f"{host.address}:7946")]
    sets = [word for setting in (*SETTINGS, PACE) for word in ("--set", setting)]
    north, east, south = [swarm.node(host, "--policy", "el", *seeds, *sets) for host in hosts]
    until(lambda: _levels(north, east, south) == ["ok"] * 3, 120, "all exchange models")
    south.host.run("nft", "-f", "-", input=CLOSED)
    told = until(lambda: "cannot reach you at" in south.log(), 90, "south is told")
    until(lambda: "no model has arrived for" in south.log(), 90, "south warns that nothing arrives")
    until(lambda: _levels(north, east, south) == ["ok", "ok", "fail"], 60, "the others go on")
    south.host.run("nft", "flush", "ruleset")
    back = until(lambda: _levels(north, east, south) == ["ok"] * 3, 90, "south is back")
    print(
        f"\nsouth was told {told:.1f} s after its port was closed, and was back {back:.1f} s after it was opened"
    )
    assert back <= BACK
    assert "models arrive again" in south.log()


def _levels(*nodes: Program) -> list[str]:
    return [node.status().get("health", {}).get("level", "") for node in nodes]


def _doctor(node: Program) -> list[str]:
    words = ("doctor", node.address, "--data-dir", node.folder)
    done = subprocess.run(
        node.host.command(sys.executable, "-m", "pfl_node", *words),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    assert done.returncode == 1, done
    return done.stdout.splitlines()


def _discard_what_is_private(host: Host) -> None:
    """As the internet does: without a route, a connection would fail at once instead of after a timeout."""
    nowhere = f"{PUBLIC}.254"
    host.run("ip", "route", "add", "default", "via", nowhere, "dev", "wan")
    host.run("ip", "neigh", "replace", nowhere, "lladdr", "02:00:00:00:00:fe", "dev", "wan")


def _said(node: Program) -> Iterator[tuple[float, str]]:
    for line in node.log().splitlines():
        if line.startswith("{") and line.endswith("}"):
            row = json.loads(line)
            yield datetime.fromisoformat(row["timestamp"]).timestamp(), str(row["event"])


def _first(node: Program, text: str) -> float:
    return next(at for at, event in _said(node) if text in event)


def _seconds(node: Program, since: float, until: float) -> float:
    """The mean duration of the rounds that ended in that time."""
    ended = [row for row in node.rounds() if since <= float(row["time"]) <= until]
    return (until - since) / len(ended)
