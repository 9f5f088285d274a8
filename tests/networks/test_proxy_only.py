"""A site that may only use an HTTP proxy, tinyproxy of Debian, exchanges models with a public site and one behind
NAT."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.networks.internet import Internet, missing
from tests.networks.programs import PORT, Program, Swarm, until

pytestmark = pytest.mark.netns

CONFIGURATION = """
Port 8888
Listen 192.168.50.1
Timeout 600
MaxClients 100
BasicAuth office secret
ConnectPort {port}
LogLevel Connect
"""


def test_a_site_with_a_proxy_only_takes_part(internet: Internet, swarm: Swarm, tmp_path: Path) -> None:
    if lack := missing(["tinyproxy"]):
        pytest.skip(lack)
    office, gateway = internet.behind_gateway("office")
    (tmp_path / "tinyproxy.conf").write_text(CONFIGURATION.format(port=PORT))
    (tmp_path / "password").write_text("office:secret\n")
    words = gateway.command("tinyproxy", "-d", "-c", tmp_path / "tinyproxy.conf")
    record = tmp_path / "tinyproxy.log"  # a pipe that nobody reads would fill, and stop the proxy
    with record.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out) as proxy:
        hub = swarm.seed(internet.public("hub"), "--relay")
        common = ("--peer-seed", hub.address, "--policy", "el", "--set", "round.every=1s")
        through = ("network.proxy=http://192.168.50.1:8888", f"network.proxy_credentials={tmp_path / 'password'}")
        hosts = [internet.public("north"), internet.behind_nat("east"), office]
        ids = {host.name: swarm.identity(host) for host in hosts}
        sites = [
            *(swarm.node(host, *common) for host in hosts[:2]),
            swarm.node(office, *common, *(word for text in through for word in ("--set", text))),
        ]
        others = {name: set(ids.values()) - {id} for name, id in ids.items()}
        until(lambda: all(heard_from(site) == others[site.name] for site in sites), 180, "models of all at all")
        proxy.terminate()
    log = record.read_text()
    status = sites[-1].status()
    died = [
        line for site in sites[:2] for line in site.log().splitlines() if '"died"' in line and '"office"' in line
    ]
    asked = log.count("CONNECT")
    print(f"office: received {status['models_received']}, asked the proxy {asked} times, died {len(died)} times")
    assert f"CONNECT {hub.address}" in log
    assert died == []


def heard_from(site: Program) -> set[str]:
    """The peers whose models have arrived there."""
    return {peer for peer, number in site.status().get("models_received", {}).items() if number}
