"""Prometheus and Grafana: what they ask for exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from pfl_node.ops.prometheus import FIGURES
from tests.containers.files import COMPOSE, ROOT, dashboards, read

OWN = re.compile(r"\bpfl_node_\w+")
OF_THE_PROCESS = re.compile(r"\bprocess_\w+")
ALERTS = COMPOSE / "watch" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
SUMMARY = ("_sum", "_count")


def exported() -> set[str]:
    endings = {"summary": SUMMARY}
    return {f.exported + ending for f in FIGURES for ending in endings.get(f.kind, ("",))}


def queries() -> Iterator[str]:
    for _, board in dashboards():
        for panel in board["panels"]:
            yield from (target["expr"] for target in panel["targets"])
    yield from (alert["expr"] for alert in alerts())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in read(ALERTS)["groups"] for rule in group["rules"]]


def of_the_process() -> set[str]:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return {sample.name for family in registry.collect() for sample in family.samples}


def test_every_query_asks_for_a_metric_that_a_node_exports() -> None:
    asked = list(queries())
    assert len(asked) > 20
    known = exported()
    assert [name for query in asked for name in OWN.findall(query) if name not in known] == []
    assert {name for query in asked for name in OF_THE_PROCESS.findall(query)} <= of_the_process()
    assert [q for q in asked if not OWN.search(q) and not OF_THE_PROCESS.search(q) and "up{" not in q] == []


def test_every_label_that_a_query_names_is_there() -> None:
    labels: dict[str, set[str]] = {f.exported: set(f.labels) for f in FIGURES}
    for query in queries():
        for name, inside in re.findall(r"(pfl_node_\w+)\{([^}]*)\}", query):
            asked = set(re.findall(r"(\w+)\s*[=!]", inside))
            assert asked <= labels[name.removesuffix("_sum").removesuffix("_count")], query


def test_every_alert_is_explained_to_operators_and_nothing_else_is() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names) > 10
    explained = re.findall(r"^\| `([A-Z]\w+)` \|", (ROOT / "docs" / "operate.md").read_text(), re.M)
    assert explained == names
    for alert in alerts():
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("info", "warning", "critical")


@pytest.mark.skipif(not PROMTOOL, reason="needs promtool of Prometheus")
def test_the_alerts_fire_when_they_should_and_are_silent_when_all_is_well() -> None:
    played = Path(__file__).parent / "alerts.test.yaml"
    for words in (("check", "rules", ALERTS), ("test", "rules", played)):
        done = subprocess.run([str(PROMTOOL), *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_titles_and_do_not_cover_each_other() -> None:
    ((_, board),) = dashboards()
    places: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        assert panel["title"]
        at: dict[str, Any] = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in places, f"{panel['title']} lies over {places[x, y]}"
                places[x, y] = panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_prometheus_scrapes_the_port_that_nodes_serve_with_their_token() -> None:
    (job,) = read(COMPOSE / "watch" / "prometheus.yaml")["scrape_configs"]
    node = read(COMPOSE / "compose.watch.yaml")["services"]["node"]
    assert job["dns_sd_configs"][0]["port"] == int(node["environment"]["PFL_HTTP__LISTEN"].rpartition(":")[2])
    assert job["dns_sd_configs"][0]["names"] == ["node"]
    assert job["authorization"] == {"credentials_file": "/tmp/token"}
    assert read(COMPOSE / "watch" / "prometheus.yaml")["rule_files"] == ["alerts.yaml"]


def test_nothing_that_watches_is_reachable_from_elsewhere() -> None:
    services = read(COMPOSE / "compose.watch.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
