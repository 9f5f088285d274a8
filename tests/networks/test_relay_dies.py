"""Two relays, three sites behind NAT: the relay that is used is killed, and the other one takes over."""

from __future__ import annotations

import pytest

from tests.networks.internet import Internet
from tests.networks.programs import Program, Swarm, until

pytestmark = pytest.mark.netns

ROUNDS = 10  # before the kill, and after it
PEERS = 2  # from which each site gets a model in every round
TRAIN = ("--set", "train.epochs=40")


def test_the_death_of_a_relay_costs_at_most_one_round(internet: Internet, swarm: Swarm) -> None:
    hub = swarm.seed(internet.public("hub"), "--relay")
    spare = swarm.seed(internet.public("spare"), "--relay", "--peer-seed", hub.address)
    seeds = ("--peer-seed", hub.address, "--peer-seed", spare.address)
    start = ("--policy", "el", "--set", "start.peers=2", "--set", "start.wait=60")
    hosts = [internet.behind_nat(name) for name in ("north", "east", "south")]
    sites = [swarm.node(host, *seeds, *start, *TRAIN) for host in hosts]
    until(lambda: all(len(site.rounds()) > ROUNDS for site in sites), 240, f"{ROUNDS} rounds of each")
    before = {site.name: received(site) for site in sites}
    max((hub, spare), key=carried).kill()
    until(lambda: all(received(site)[0] > before[site.name][0] + ROUNDS for site in sites), 240, "more rounds")
    for site in sites:
        rounds, models = (now - then for now, then in zip(received(site), before[site.name], strict=True))
        lost = rounds - models / PEERS
        longest = max(site.durations()[-rounds:])
        print(
            f"{site.name}: {models} models in {rounds} rounds after the kill, {lost:.1f} rounds' worth lost; "
            f"the longest round took {longest:.1f} s, the usual one {site.round_seconds():.1f} s"
        )
        assert lost <= 1.5, site.status()  # one round, and the one that is under way


def received(site: Program) -> tuple[int, int]:
    """The round of a site and the models that it has received."""
    status = site.status()
    return int(status.get("round", 0)), sum(status.get("models_received", {}).values())


def carried(relay: Program) -> int:
    """Bytes that have passed the relay."""
    return sum(relay.status()["relay"]["bytes"].values())
