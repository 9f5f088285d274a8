"""With a real engine and the images of `make image`: a swarm starts, learns and takes back a dead one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.containers.files import COMPOSE

pytestmark = pytest.mark.docker

NODES = 3
PATIENCE = 600.0
PROJECT = "pfl-test"
IMAGES = [f"pfl-{name}:{os.environ.get('PFL_TAG') or 'dev'}" for name in ("node", "bootstrap")]


def why_not() -> str:
    if not shutil.which("docker"):
        return "there is no docker command"
    if docker("info", check=False).returncode:
        return "no Docker engine answers: is DOCKER_HOST set?"
    if missing := [i for i in IMAGES if docker("image", "inspect", i, check=False).returncode]:
        return f"there is no image {missing[0]}: run make image"
    return ""


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check, cwd=COMPOSE)


def compose(*words: str) -> str:
    return docker("compose", "-p", PROJECT, *words).stdout


def nodes() -> list[str]:
    """Running containers."""
    form = ("--filter", f"label=com.docker.compose.project={PROJECT}", "--format", "{{.Names}}")
    listed = docker("ps", "--filter", "label=com.docker.compose.service=node", *form)
    return listed.stdout.split()


def asked(container: str, *words: str) -> str:
    return docker("exec", container, "pfl-node", *words, check=False).stdout


def members(container: str) -> dict[str, str]:
    """Ids and states of all nodes, as one of them sees them."""
    text = asked(container, "peers", "127.0.0.1:7946", "--format", "json")
    found = json.loads(text)["peers"] if text else []
    return {m["id"]: m["state"] for m in found if m["role"] == "node"}


def until(so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(1)


@pytest.fixture(scope="module")
def swarm() -> Iterator[None]:
    if reason := why_not():
        pytest.skip(reason)
    os.environ["PFL_ROUNDS"] = "100000"  # until the end of the test
    try:
        compose("up", "-d", "--scale", f"node={NODES}")
        until(lambda: len(nodes()) == NODES, "all containers run")
        until(lambda: list(members(nodes()[0]).values()).count("alive") == NODES, "all nodes are members")
        yield
    finally:
        del os.environ["PFL_ROUNDS"]
        docker("compose", "-p", PROJECT, "down", "-v", "--timeout", "5", check=False)


def test_all_nodes_find_each_other_and_learn(swarm: None) -> None:
    def rounds() -> list[int]:
        texts = [asked(name, "status", "127.0.0.1:7946", "--format", "json") for name in nodes()]
        return [json.loads(text)["round"] for text in texts if text]

    until(lambda: len(rounds()) == NODES and min(rounds()) >= 2, "two rounds everywhere")


def test_nodes_run_as_nobody_special_and_within_limits(swarm: None) -> None:
    name = nodes()[0]
    assert docker("exec", name, "id", "-u").stdout.strip() == "10001"
    found = json.loads(docker("inspect", name).stdout)[0]["HostConfig"]
    assert found["Memory"] == 768 << 20
    assert found["NanoCpus"] == 10**9
    assert found["ReadonlyRootfs"] is True


def test_the_replacement_of_a_dead_container_is_the_same_node_again(swarm: None) -> None:
    victim, *others = nodes()
    before = members(others[0])
    docker("rm", "--force", victim)
    compose("up", "-d", "--no-recreate", "--scale", f"node={NODES}")
    until(lambda: len(nodes()) == NODES, "there is a replacement")

    def back() -> bool:
        found = members(others[0])
        return found.keys() == before.keys() and set(found.values()) == {"alive"}

    until(back, "the replacement has the dead one's id")
