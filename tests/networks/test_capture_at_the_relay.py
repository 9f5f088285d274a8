"""What a relay can see of the models that pass it: everything without TLS, nothing with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.networks.internet import Internet
from tests.networks.programs import ROOT, Swarm, until

pytestmark = pytest.mark.netns

PLAIN = (b"SendModel", b"pfl.v1.Peer", b"pfl.v2.Membership")  # names of the protocol


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "insecure"])
def test_a_capture_at_the_relay_contains_no_plaintext(internet: Internet, tmp_path: Path, tls: bool) -> None:
    hub = internet.public("hub")
    hosts = [internet.behind_nat(name) for name in ("north", "east")]
    frames = tmp_path / "frames"
    words = hub.command(sys.executable, "-m", "tests.networks.capture", frames)
    with Swarm(tmp_path / "swarm") as swarm, subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as tap:
        assert tap.stdout
        tap.stdout.readline()
        how = () if tls else ("--insecure",)
        seed = swarm.seed(hub, "--relay", *how)
        common = ("--peer-seed", seed.address, "--policy", "el", "--set", "round.every=1s", *how)
        sites = [swarm.node(host, *common) for host in hosts]
        until(lambda: all(models(site.status(tls=tls)) > 5 for site in sites), 180, "six models at each")
        tap.terminate()
    seen = frames.read_bytes()
    ids = [site.id.encode() + b".relay" for site in sites]
    found = [word for word in PLAIN if word in seen]
    print(f"{'TLS' if tls else 'no TLS'}: {len(seen)} bytes at the relay, of which plain: {found}")
    assert all(id in seen for id in ids)  # whom a connection is for is visible
    assert bool(found) is not tls


def models(status: dict[str, Any]) -> int:
    """Received in all."""
    return sum(status.get("models_received", {}).values())
