"""What `pfl-node doctor` finds about the network before the first start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bootstrap.options import parse
from bootstrap.seed import Seed
from pfl_node.daemon.first_start import first_start_checks
from pfl_node.ops.node_health import HealthCheck
from pfl_node.security.credentials import load_credentials
from pfl_node.settings import NetworkSettings, Settings, TlsSettings
from tests.identities import Site


@asynccontextmanager
async def office(*words: str) -> AsyncIterator[Seed]:
    seed = Seed(parse(["--listen", "127.0.0.1:0", *words]))
    await seed.start()
    try:
        yield seed
    finally:
        await seed.stop()


def reachable(network: NetworkSettings, *words: str, advertise: str | None = None) -> HealthCheck:
    async def scenario() -> HealthCheck:
        async with office(*words) as seed:
            settings = Settings(
                listen="127.0.0.1:0", advertise=advertise, peer_seed=(seed.address,), network=network
            )
            checks = await first_start_checks(settings)
            (check,) = [check for check in checks if check.name == "reachable"]
            return HealthCheck(check.name, check.level, check.text.replace(seed.address, "SEED"), check.todo)

    return asyncio.run(scenario())


NOWHERE = "127.0.0.1:1"  # nothing listens there


def test_a_site_that_nobody_reaches_will_use_the_relay_that_a_member_offers() -> None:
    check = reachable(NetworkSettings(), "--relay", advertise=NOWHERE)
    assert check.level == "ok"
    assert check.text.startswith(
        "others will connect through the relay SEED: SEED cannot reach you at 127.0.0.1:1 ("
    )


@pytest.mark.parametrize(("reach", "words"), [("auto", ()), ("direct", ("--relay",))])
def test_without_a_relay_it_fails_and_says_what_to_do(reach: str, words: tuple[str, ...]) -> None:
    check = reachable(NetworkSettings.model_validate({"reach": reach}), *words, advertise=NOWHERE)
    assert check.level == "fail"
    assert check.text.startswith("SEED cannot reach you at 127.0.0.1:1 (")
    assert check.todo == "open the port, set advertise, or use a relay"


def test_a_site_that_wants_a_relay_needs_one() -> None:
    network = NetworkSettings(reach="relay")
    assert reachable(network, "--relay").text == "others will connect through the relay SEED"
    check = reachable(network)
    assert (check.level, check.text) == ("fail", "no member offers a relay, which this site needs")


def test_a_site_that_its_seeds_refuse_is_sent_to_the_operator(tmp_path: Path) -> None:
    site = Site(tmp_path)
    north, east = site.member("north"), site.member("east")
    site.revoke(load_credentials(east).certificate.id, at="north")
    words = ("--tls", "--data-dir", str(north.directory))

    async def scenario() -> HealthCheck:
        async with office(*words) as seed:
            settings = Settings(
                listen="127.0.0.1:0", peer_seed=(seed.address,), data_dir=east.directory, tls=TlsSettings(on=True)
            )
            (check,) = [check for check in await first_start_checks(settings) if check.name == "seeds"]
            return check

    check = asyncio.run(scenario())
    assert (check.level, "is revoked" in check.text) == ("fail", True)
    assert check.todo.startswith("ask the operator; the certificate of this site is not accepted there")


def test_the_traffic_is_estimated_for_the_peers_that_the_first_round_waits_for() -> None:
    def pace(peers: int) -> str:
        settings = Settings.model_validate(
            {"listen": "127.0.0.1:0", "round": {"every": 1200.0}, "start": {"peers": peers}}
        )
        (check,) = [check for check in asyncio.run(first_start_checks(settings)) if check.name == "pace"]
        return check.text

    one, two = (float(re.sub(r".* ([0-9.]+) [kM]B of models a day", r"\1", pace(peers))) for peers in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.1)
