"""The manifests against the schemas of the API, and what a swarm needs of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.options import parse
from pfl_node.daemon.preflight import check
from pfl_node.policies import knobs_of
from pfl_node.security.ca import Authority
from pfl_node.settings.load import load_settings
from tests.containers.files import K8S, flags, manifests, merged, pods

kubernetes_validate = pytest.importorskip("kubernetes_validate")

FOLDERS = [K8S / "base", *sorted((K8S / "overlays").iterdir())]
VERSIONS = ["1.28", "1.34"]  # the first that tells a pod its number, and a later one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_resource_is_what_the_api_expects(folder: Path, version: str) -> None:
    for resource in manifests(folder):
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_swarm_has_all_its_parts(folder: Path) -> None:
    found = manifests(folder)
    kinds = [resource["kind"] for resource in found]
    assert (kinds.count("StatefulSet"), kinds.count("PodDisruptionBudget"), kinds.count("Service")) == (2, 2, 2)
    by_name = {(r["kind"], r["metadata"]["name"]): r["spec"] for r in found if "spec" in r}
    for name in ("pfl-bootstrap", "pfl-node"):
        stateful, service = by_name["StatefulSet", name], by_name["Service", name]
        labels = stateful["template"]["metadata"]["labels"]
        assert stateful["serviceName"] == name
        assert service["clusterIP"] == "None", "headless"
        budget = by_name["PodDisruptionBudget", name]
        for selector in (
            stateful["selector"]["matchLabels"],
            service["selector"],
            budget["selector"]["matchLabels"],
        ):
            assert selector.items() <= labels.items()


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for where, pod in pods():
        for container in pod["containers"]:
            yield f"{where}/{container['name']}", pod, container


EVERY = list(containers())
every = pytest.mark.parametrize(("pod", "container"), [c[1:] for c in EVERY], ids=[c[0] for c in EVERY])


@every
def test_a_pod_is_confined_probed_and_limited(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "keys in the volume stay private"
    assert pod["enableServiceLinks"] is False, "the cluster's own variables begin with PFL_, too"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert "memory" in container["resources"]["limits"]


@every
def test_what_a_pod_starts_is_understood(pod: dict[str, Any], container: dict[str, Any], tmp_path: Path) -> None:
    place = certificates(tmp_path)
    names = {
        "/certificates/$(POD_NAME).pem": place / "cert.pem",
        "/certificates/$(POD_NAME).key": place / "key.pem",
    }
    words = []
    for word in container["args"]:
        flag, _, value = word.partition("=")
        value = str(names.get(value, value.replace("/certificates", str(place))))
        words.append(f"{flag}={value}" if value else flag)
    if container["name"] == "bootstrap":
        assert parse(words).advertise == "pfl-bootstrap:7000"
        return
    environ = {entry["name"]: entry.get("value", "7") for entry in container["env"]}
    settings = load_settings(environ=environ, overrides=flags(words), knobs=knobs_of)
    check(settings)
    assert settings.rounds is None, "a StatefulSet starts again what ends"
    assert settings.task.index == 7


def certificates(folder: Path) -> Path:
    Authority.create(folder / "ca", "a CA", 1).issue_for(folder / "one", name="", days=1)
    return folder / "one"


def test_an_overlay_changes_what_it_names_and_keeps_the_rest() -> None:
    old = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "args": ["x"],
        "n": {"a": 1, "b": 2, "d": 4},
    }
    new = {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "args": ["y"],
        "n": {"b": 3, "d": None},
    }
    assert merged(old, new) == {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "args": ["y"],
        "n": {"a": 1, "b": 3},
    }
