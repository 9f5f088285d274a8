"""The files under test, read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pfl_node.cli.options import FLAGS

ROOT = Path(__file__).resolve().parents[2]
DOCKER, COMPOSE = ROOT / "docker", ROOT / "compose"
BASE = COMPOSE / "compose.yaml"
OVERLAYS = sorted(path for path in COMPOSE.glob("*.yaml") if path != BASE)
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
K8S = COMPOSE / "k8s"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?([^}]*))?\}")
TOKEN = "0123456789abcdef"  # for what must be given


def read(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict), path
    return found


def services() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    for path in (BASE, *OVERLAYS):
        for name, service in read(path).get("services", {}).items():
            yield path, name, service


def filled(value: Any) -> str:
    """With the defaults of its ${VARIABLES:-default}."""
    return VARIABLE.sub(lambda found: TOKEN if ":?" in found[0] else found[2] or "", str(value))


def command(service: dict[str, Any]) -> list[str]:
    return [filled(word) for word in service.get("command") or ()]


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: filled(value) for name, value in (service.get("environment") or {}).items()}


def flags(words: list[str]) -> dict[str, Any]:
    """A node's command as its flags are read: by dotted key."""
    known = {flag.spelling: flag for flag in FLAGS}
    found: dict[str, Any] = {}
    for word in words:
        spelling, _, value = word.partition("=")
        assert spelling in known, f"pfl-node has no {spelling}"
        flag = known[spelling]
        found[flag.key] = True if flag.switch else [*found.get(flag.key, []), value] if flag.many else value
    return found


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The resources of a kustomization, with its patches laid over those of its base."""
    plan = read(folder / "kustomization.yaml")
    found: list[dict[str, Any]] = []
    for name in plan.get("resources", ()):
        place = folder / name
        found += manifests(place) if place.is_dir() else documents(place)
    for patch in plan.get("patches", ()):
        for change in documents(folder / patch["path"]):
            targets = [r for r in found if _named(r) == _named(change)]
            assert len(targets) == 1, f"{folder.name}: {_named(change)} is there {len(targets)} times"
            found[found.index(targets[0])] = merged(targets[0], change)
    return found


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def merged(old: Any, new: Any) -> Any:
    """As kustomize's strategic merge does it, as far as these files need: mappings by key, lists by name."""
    if isinstance(old, dict) and isinstance(new, dict):
        both = {**old, **{key: merged(old[key], new[key]) if key in old else new[key] for key in new}}
        return {key: value for key, value in both.items() if value is not None}
    if isinstance(old, list) and isinstance(new, list) and all(_has_key(item) for item in (*old, *new)):
        by_name = {_key(item): item for item in old}
        for item in new:
            by_name[_key(item)] = merged(by_name.get(_key(item)), item)
        return list(by_name.values())
    return new


def _has_key(item: Any) -> bool:
    return isinstance(item, dict) and ("name" in item or "mountPath" in item)


def _key(item: dict[str, Any]) -> str:
    return str(item.get("mountPath") or item["name"])


def _named(resource: dict[str, Any]) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod template of every workload of every kustomization."""
    for folder in (K8S / "base", *sorted((K8S / "overlays").iterdir())):
        for resource in manifests(folder):
            if resource["kind"] in ("StatefulSet", "Deployment", "Job"):
                yield f"{folder.name}/{resource['metadata']['name']}", resource["spec"]["template"]["spec"]


def dashboards() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, json.loads(path.read_text())) for path in sorted(COMPOSE.rglob("dashboards/*.json"))]
