"""The Compose files and the images' recipes: valid, pinned, confined, and true to the commands they start."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

from bootstrap.options import parse
from pfl_node.daemon.preflight import check
from pfl_node.daemon.tls_setup import why_tls
from pfl_node.policies import knobs_of
from pfl_node.security.ca import Authority
from pfl_node.settings.load import load_settings
from tests.containers.files import (
    BASE,
    COMPOSE,
    DOCKER,
    DOCKERFILES,
    OVERLAYS,
    ROOT,
    command,
    environment,
    filled,
    flags,
    read,
    services,
)

ALL = [BASE, *OVERLAYS]
names = [path.name for path in ALL]
IF_THERE = {"_distutils_hack", "grpc_tools"}  # loaded by others where they are installed, and missed by nobody


@pytest.mark.parametrize("path", ALL, ids=names)
def test_every_file_is_valid_for_compose_v2(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    schema = resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    jsonschema.validate(read(path), json.loads(schema.read_text()))


@pytest.mark.parametrize("path", ALL, ids=names)
def test_no_file_has_what_compose_1_29_does_not_know(path: Path) -> None:
    """Its schema is older than `name`, `include`, `develop`, `models` and `start_interval`."""
    found = read(path)
    assert set(found) <= {"services", "volumes", "networks", "configs", "secrets"} | {
        key for key in found if key.startswith("x-")
    }
    text = path.read_text()
    assert [word for word in ("start_interval", "develop:", "!override", "!reset") if word in text] == []


def test_the_main_file_has_a_bootstrap_nodes_and_what_helps_them() -> None:
    assert set(read(BASE)["services"]) == {"bootstrap", "node", "watch", "kernel"}


def test_what_watches_the_swarm_has_the_settings_of_its_nodes() -> None:
    for path in ALL:
        found = read(path)["services"]
        if path.name not in ("compose.tls.yaml", "compose.watch.yaml", "compose.cuda.yaml", "stack.yaml"):
            assert found["watch"]["environment"] == found["node"]["environment"]


def test_the_container_that_raises_limits_of_the_host_may_do_nothing_else() -> None:
    assert [name for _, name, service in services() if service.get("privileged")] == []
    kernel = read(BASE)["services"]["kernel"]
    assert kernel["volumes"] == ["neighbours:/neighbours"]
    assert (kernel["cap_drop"], kernel["cap_add"]) == (["ALL"], ["NET_ADMIN"])
    assert (kernel["read_only"], kernel["restart"]) == (True, "no")
    assert re.findall(r">(\w+)", command(kernel)[0]) == ["gc_thresh3", "gc_thresh2"]
    assert read(COMPOSE / "stack.yaml")["services"]["kernel"]["deploy"]["replicas"] == 0


def test_everything_from_elsewhere_has_a_version() -> None:
    images = {filled(service["image"]) for _, _, service in services() if "image" in service}
    ours = {image for image in images if image.startswith("pfl-")}
    assert ours == {"pfl-bootstrap:dev", "pfl-node:dev"}
    assert [i for i in images - ours if not re.search(r":v?\d+\.\d+", i)] == []
    bases = [line for path in DOCKERFILES for line in path.read_text().splitlines() if line.startswith("ARG BASE")]
    assert bases == ["ARG BASE=python:3.11-slim"] * len(DOCKERFILES)


@pytest.mark.parametrize("name", ["bootstrap", "node"])
def test_a_container_of_ours_is_confined_and_limited(name: str) -> None:
    service = read(BASE)["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["restart"] in ("on-failure", "unless-stopped")
    assert any(volume.endswith(":/var/lib/pfl") for volume in service["volumes"])


def node_environment(path: Path) -> dict[str, str]:
    """The main file's, with one overlay over it."""
    found: dict[str, str] = {}
    for file in dict.fromkeys((BASE, path)):
        found |= environment(read(file).get("services", {}).get("node", {}))
    return found


@pytest.mark.parametrize("path", ALL, ids=names)
def test_every_setting_of_a_node_is_one_that_it_knows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_certificates(tmp_path)
    monkeypatch.chdir(tmp_path)
    environ = {k: v.replace("{{.Task.Slot}}", "3") for k, v in node_environment(path).items()}
    settings = load_settings(environ=environ, overrides=flags_of(path), knobs=knobs_of)
    check(settings)
    assert settings.rounds is not None
    assert bool(why_tls(settings)) == (path.name == "compose.tls.yaml")
    assert settings.task.index == "slot"
    assert environ["OMP_NUM_THREADS"] == "1"


def provide_certificates(folder: Path) -> None:
    """What the overlay with TLS finds where it starts."""
    authority = Authority.create(folder / "ca", "a CA", 1)
    for place in (folder / "pfl-data" / "node-1", folder / "seed"):
        authority.issue_for(place, name="", days=1)


def flags_of(path: Path) -> dict[str, Any]:
    service = read(path).get("services", {}).get("node", {})
    return flags(command(service) or command(read(BASE)["services"]["node"]))


@pytest.mark.parametrize("path", ALL, ids=names)
def test_every_flag_of_the_bootstrap_is_one_that_it_knows(path: Path, tmp_path: Path) -> None:
    provide_certificates(tmp_path)
    words = command(read(path).get("services", {}).get("bootstrap", {})) or command(
        read(BASE)["services"]["bootstrap"]
    )
    words = [f"--data-dir={tmp_path / 'seed'}" if word.startswith("--data-dir") else word for word in words]
    options = parse(words)
    assert options.listen.endswith(":7000")
    assert options.advertise == "bootstrap:7000"


def test_the_node_asks_the_bootstrap_at_its_own_name() -> None:
    assert flags_of(BASE)["peer_seed"] == ["bootstrap:7000"]


# -- the images ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_made_in_stages_and_runs_as_nobody_special(path: Path) -> None:
    text = path.read_text()
    last = text[text.rindex("\nFROM ") :]
    assert text.count("\nFROM ") >= 3
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert "pip install" not in last
    assert last.index("compileall") < last.index("PYTHONDONTWRITEBYTECODE"), "nothing is compiled in a container"
    assert "--mount" not in text, "the builder of Compose 1.29 has no mounts"
    assert last.index(" /opt/libraries") < last.index(" /opt/pfl"), "libraries change less often"


ANSWER = 4  # seconds that docker/healthy.py waits for an answer
LOADING = 163  # seconds until the last of fifty nodes was ready on two cores (docs/docker.md)


def seconds(check: str, option: str) -> int:
    found = re.search(rf"--{option}=(\d+)s", check)
    assert found, option
    return int(found[1])


def health_check() -> tuple[str, int, list[str]]:
    """The options of the node's image, its number of retries, and the command."""
    text = (DOCKER / "node.Dockerfile").read_text()
    found = re.search(r"^HEALTHCHECK (.*--retries=(\d+)) \\\n\s*CMD (.*)$", text, re.MULTILINE)
    assert found
    return found[1], int(found[2]), json.loads(found[3])


def test_a_node_that_hangs_is_unhealthy_within_90_seconds() -> None:
    options, retries, words = health_check()
    lasts = int(words[words.index("--wait") + 1]) + ANSWER
    assert retries * (seconds(options, "interval") + lasts) <= 90
    assert lasts < seconds(options, "timeout"), "Docker does not kill a check that may still succeed"


def test_a_node_may_load_torch_and_is_not_checked_every_five_seconds_meanwhile() -> None:
    options, _, words = health_check()
    assert seconds(options, "start-period") >= LOADING
    assert int(words[words.index("--wait") + 1]) >= 10, "Docker 25 and newer pause only 5 s between checks"
    assert "--start-interval" not in options, "builders before Docker 25 refuse it"


def test_the_overlay_with_tls_checks_a_node_as_often_as_its_image() -> None:
    _, _, words = health_check()
    test = read(COMPOSE / "compose.tls.yaml")["services"]["node"]["healthcheck"]
    assert set(test) == {"test"}, "intervals are those of the image"
    assert test["test"][1 : 1 + len(words)] == words


def test_no_file_names_a_place_where_packages_come_from() -> None:
    files = [*DOCKERFILES, *COMPOSE.rglob("*"), ROOT / ".dockerignore"]
    text = "\n".join(path.read_text() for path in files if path.is_file())
    assert re.findall(r"https?://(?!localhost|127\.|prometheus:)[\w.-]+", text) == []


def test_the_build_context_is_the_package_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert kept == {"pyproject.toml", "README.md", "LICENSE", "docker", "bootstrap", "pfl_node"}


def test_requirements_leave_torch_to_its_own_layer() -> None:
    found = requirements()
    assert "numpy" in found
    assert "torch" not in found


def test_the_bootstrap_imports_nothing_that_its_image_lacks() -> None:
    """What comes with the named libraries is there, too."""
    text = (ROOT / "docker" / "bootstrap.Dockerfile").read_text()
    wanted = re.search(r"pyproject\.toml \\\n\s*(.*?) >/requirements", text)
    assert wanted
    allowed = closure(requirements(*wanted[1].split()))
    code = "import sys, bootstrap.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    homes = metadata.packages_distributions()
    allowed |= {"pfl-node", "pfl_node"}
    names = set(loaded.stdout.split()) - IF_THERE
    assert [name for name in names if name in homes and not allowed & set(homes[name])] == []


def requirements(*names: str) -> set[str]:
    words = [sys.executable, "docker/requirements.py", "pyproject.toml", *names]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in done.stdout.splitlines()}


def closure(distributions: set[str]) -> set[str]:
    found: set[str] = set()
    queue = list(distributions)
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        needs = [line for line in metadata.requires(name) or () if "extra ==" not in line]
        queue += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in needs]
    return found | {name.replace("_", "-") for name in found} | {name.replace("-", "_") for name in found}
