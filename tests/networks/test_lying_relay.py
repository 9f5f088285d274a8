"""A relay that leads callers of one site to another one: TLS refuses it, and nobody else is affected."""

from __future__ import annotations

import pytest

from tests.networks.internet import Internet
from tests.networks.programs import Swarm, until

pytestmark = pytest.mark.netns


def test_a_relay_that_lies_about_ids_is_refused(internet: Internet, swarm: Swarm) -> None:
    hosts = [internet.behind_nat(name) for name in ("north", "east", "south")]
    north, east, _ = (swarm.identity(host) for host in hosts)
    lies = {"LIE_ABOUT": north, "LIE_WITH": east}
    hub = swarm.seed(internet.public("hub"), "--relay", module="tests.networks.lying_relay", environment=lies)
    common = ("--peer-seed", hub.address, "--policy", "el", "--set", "round.every=1s")
    sites = [swarm.node(host, *common) for host in hosts]
    last = sites[-1]
    until(lambda: last.status().get("models_received", {}).get(east, 0) > 3, 180, "models from east at south")
    until(lambda: any("impostor" in call for call in last.status().get("failed_calls", ())), 60, "a refusal")
    status = last.status()
    print(f"south: received {status['models_received']}, sent {status['models_sent']}, {status['failed_calls']}")
    assert status["models_sent"].get(north, 0) == 0
    assert status["models_sent"].get(east, 0) > 0
