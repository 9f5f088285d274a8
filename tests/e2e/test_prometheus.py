"""A real Prometheus scrapes a real swarm with TLS: its targets are up, dashboard and alerts get their answers."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.containers.test_watch import ALERTS, queries
from tests.e2e.in_process import Life, Town, play
from tests.e2e.processes import until
from tests.e2e.web import get
from tests.identities import Site

PROMETHEUS = shutil.which("prometheus")
TOKEN = "a-token-of-sixteen-and-more"
NAMES = ("ann", "bob", "carl")
SETTINGS = {
    "policy": {"name": "el"},
    "start": {"peers": 2, "wait": 60},
    "store": {"checkpoint_every": 5},
    "tls": {"on": True},
    "http": {"listen": "127.0.0.1:0", "token": TOKEN},
}
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{alerts}]
scrape_configs:
  - job_name: pfl-node
    authorization: {{credentials_file: token}}
    static_configs: [{{targets: {targets}}}]
"""


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def asked(self, path: str) -> Any:
        """None: it does not serve yet."""
        try:
            with urlopen(self._url + path, timeout=30) as answer:
                return json.load(answer)["data"]
        except URLError:
            return None

    def query(self, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.asked(f"query?query={quote(text)}")["result"]
        return found

    def up(self) -> list[dict[str, Any]] | None:
        """The targets, when all of them are."""
        targets = (self.asked("targets") or {}).get("activeTargets", [])
        return targets if len(targets) == len(NAMES) and all(t["health"] == "up" for t in targets) else None


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "prometheus.yaml").write_text(CONFIG.format(alerts=ALERTS, targets=json.dumps(targets)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(PROMETHEUS), *words], cwd=folder, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(not PROMETHEUS, reason="needs a prometheus, such as Debian's package")
def test_prometheus_scrapes_a_swarm_with_tls(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def scene(town: Town) -> None:
        for name in NAMES:
            site.member(name)
        ann = await town.runs("ann", **SETTINGS)
        lives = [ann, *[await town.runs(name, **SETTINGS, peer_seed=(ann.address,)) for name in NAMES[1:]]]
        await asyncio.gather(*(life.trains() for life in lives))
        await asyncio.gather(*(life.rounds(10) for life in lives))
        assert (await get(ann, "/metrics")).status == 401
        await asyncio.to_thread(_scraped, tmp_path / "prometheus", lives)

    play(tmp_path, scene)


def _scraped(folder: Path, lives: list[Life]) -> None:
    pages = [life.node.node_observer.page for life in lives]
    with prometheus(folder, [f"127.0.0.1:{page.port}" for page in pages if page]) as it:
        for target in until(it.up):
            print(target["scrapeUrl"], target["health"], f"{1000 * target['lastScrapeDuration']:.0f} ms")
        assert len(until(lambda: it.query('pfl_node_state{state="training"} == 1'))) == len(NAMES)
        assert {row["value"][1] for row in it.query('pfl_node_members{state="alive"}')} == {str(len(NAMES))}
        assert len(it.query("pfl_node_certificate_expiry_timestamp_seconds > time()")) == len(NAMES)
        for text in queries():
            it.query(text.replace("$__rate_interval", "1m").replace("$__range", "1h"))
        until(lambda: _firing(it) == {"CertificateExpires"})  # they hold for a day
        assert [(rule["name"], rule["lastError"]) for rule in _rules(it) if rule["health"] != "ok"] == []


def _rules(it: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in it.asked("rules")["groups"] for rule in group["rules"]]


def _firing(it: Prometheus) -> set[str]:
    return {rule["name"] for rule in _rules(it) if rule["state"] == "firing"}
