"""N containers on one machine with `docker compose`: time to ready, memory, and 10 of them killed and replaced.

`make compose-50`, or `python -m benchmarks.containers [N] [ROUNDS] [COMPOSE FILES...]` with existing images.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import util
from pathlib import Path
from statistics import fmean, median
from typing import Any

import grpc

from benchmarks.report import show
from pfl_node.membership import membership_pb2 as pb
from pfl_node.wire import membership_pb2_grpc

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "pfl-bench"
KILLED = 10
PATIENCE = 1800.0
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Runs in a container with the nodes' volume and prints the last accuracy of each node, by cluster.
LAST = """
import json, pathlib
for journal in pathlib.Path("pfl-data").glob("node-*/journal.jsonl"):
    rows = [json.loads(line) for line in journal.open()]
    done = [row for row in rows if row["event"] == "round" and "test_accuracy" in row]
    began = [row["cluster"] for row in rows if row["event"] == "started"]
    if done:
        last = {"cluster": began[-1], "round": done[-1]["round"], "accuracy": done[-1]["test_accuracy"]}
        print(json.dumps(last))
"""


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], cwd=ROOT / "compose", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Swarm:
    """The containers of one Compose project, observed from this machine."""

    def __init__(self, nodes: int, files: list[str]) -> None:
        self.nodes = nodes
        self.files = [word for file in files or ["compose.yaml"] for word in ("-f", file)]
        self.serves = _healthy()

    def compose(self, *words: str) -> str:
        return docker("compose", "-p", PROJECT, *self.files, *words)

    def up(self) -> None:
        self.compose("up", "-d", "--no-build", "--no-recreate", "--scale", f"node={self.nodes}")

    def containers(self, service: str = "node", *, running: bool = True) -> dict[str, str]:
        """Names, and the addresses of the running ones."""
        label = "label=com.docker.compose"
        words = ["ps", "-q", "--filter", f"{label}.project={PROJECT}", "--filter", f"{label}.service={service}"]
        ids = docker(*words, *([] if running else ["-a"])).split()
        form = "{{.Name}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        lines = docker("inspect", "--format", form, *ids).splitlines() if ids else []
        return {(words := line.split())[0].removeprefix("/"): words[1] if words[1:] else "" for line in lines}

    def members(self) -> dict[str, tuple[str, int]]:
        """State and round of every node on the bootstrap's list, by id."""
        (address,) = self.containers("bootstrap").values()
        with grpc.insecure_channel(f"{address}:7000") as channel:
            reply = membership_pb2_grpc.MembershipStub(channel).List(pb.ListRequest(), timeout=30)
        states = pb.Member.State
        return {m.id: (states.Name(m.state).lower(), m.round) for m in reply.members if m.role == "node"}

    def alive(self) -> int:
        return sum(state == "alive" for state, _ in self.members().values())

    def gone(self) -> int:
        return sum(state in ("dead", "left") for state, _ in self.members().values())

    def memory(self, service: str) -> list[float]:
        """MB of each container, without the page cache, as in `docker stats`."""
        lines = docker("stats", "--no-stream", "--format", "{{.MemUsage}}", *self.containers(service)).splitlines()
        return [_bytes(line.split()[0]) / 1e6 for line in lines]


def _healthy() -> Callable[[str], bool]:
    """Runs the health check of the image from outside."""
    spec = util.spec_from_file_location("healthy", ROOT / "docker" / "healthy.py")
    assert spec
    assert spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def serves(address: str) -> bool:
        try:
            return bool(module.ask(address) == 1)
        except OSError:
            return False

    return serves


def _bytes(text: str) -> float:
    unit = next(unit for unit in ("KiB", "MiB", "GiB", "B") if text.endswith(unit))
    return float(text.removesuffix(unit)) * UNITS[unit]


def until(done: Callable[[], bool], what: str, pause: float = 1.0) -> float:
    """Wait for `done` and return the seconds that took."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"timeout after {PATIENCE:g} s: {what}")
        time.sleep(pause)
    return time.monotonic() - began


def image(name: str) -> str:
    return f"pfl-{name}:{os.environ.get('PFL_TAG') or 'dev'}"


def image_size(name: str) -> float:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image(name))) / 1e6


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def start(swarm: Swarm) -> dict[str, Any]:
    began = time.monotonic()
    swarm.up()
    say(f"{swarm.nodes} containers were started in {time.monotonic() - began:.0f} s")
    ready: dict[str, float] = {}

    def all_ready() -> bool:
        for name, address in swarm.containers().items():
            if name not in ready and address and swarm.serves(f"{address}:7946"):
                ready[name] = time.monotonic() - began
        return len(ready) >= swarm.nodes

    until(all_ready, "all nodes serve")
    until(lambda: swarm.alive() >= swarm.nodes, "the bootstrap knows all")
    say(f"all {swarm.nodes} are ready after {max(ready.values()):.0f} s")
    return {"first ready s": min(ready.values()), "all ready s": max(ready.values())}


def kill_some(swarm: Swarm, count: int) -> dict[str, Any]:
    """The others continue, and the replacements start with the identities of the killed nodes."""
    before = swarm.members()
    victims = random.Random(0).sample(sorted(swarm.containers()), count)
    docker("kill", *victims)
    docker("rm", *victims)
    noticed = until(lambda: swarm.gone() >= count, "the dead are known to be dead")
    rest = {id for id, (state, _) in swarm.members().items() if state == "alive"}
    high = max(before[id][1] for id in rest)

    def moved() -> bool:
        found = swarm.members()
        return median(found[id][1] for id in rest if id in found) >= high + 2

    went_on = until(moved, "the rest go on")
    say(f"{count} killed, known to be dead after {noticed:.1f} s; the rest did two rounds in {went_on:.1f} s more")
    began = time.monotonic()
    swarm.up()
    until(lambda: swarm.alive() >= swarm.nodes, "the replacements are back")
    back = time.monotonic() - began
    same = swarm.members().keys() == before.keys()
    say(f"{count} replacements are back after {back:.0f} s, {'with' if same else 'WITHOUT'} the ids of the dead")
    return {"killed": count, "known to be dead s": noticed, "back s": back, "same ids": same}


def finish(swarm: Swarm) -> dict[str, Any]:
    took = until(lambda: not swarm.containers(), "all rounds are done", pause=3.0)
    every = swarm.containers(running=False)
    codes = docker("inspect", "--format", "{{.State.ExitCode}}", *every).split()
    volume = ("-v", f"{PROJECT}_nodes:/var/lib/pfl")
    told = docker("run", "--rm", *volume, "--entrypoint", "python", image("node"), "-c", LAST)
    rows = [json.loads(line) for line in told.splitlines()]
    clusters = {
        c: [row["accuracy"] for row in rows if row["cluster"] == c]
        for c in sorted({row["cluster"] for row in rows})
    }
    say(f"done {took:.0f} s later; exit codes {sorted(set(codes))}")
    return {
        "failed": sum(code != "0" for code in codes),
        "clusters": ":".join(str(len(found)) for found in clusters.values()),
        "rounds done, at least": 1 + min(row["round"] for row in rows),
        "test accuracy %": 100 * fmean(row["accuracy"] for row in rows),
        "of each cluster": ", ".join(f"{100 * fmean(found):.1f}" for found in clusters.values()),
    }


def main() -> None:
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        print("containers: skipped, no Docker engine is available")
        return
    nodes = int(sys.argv[1]) if sys.argv[1:] else 50
    os.environ["PFL_ROUNDS"] = sys.argv[2] if sys.argv[2:] else "30"
    swarm = Swarm(nodes, sys.argv[3:])
    sizes = {name: image_size(name) for name in ("node", "bootstrap")}
    say(f"images: {', '.join(f'{name} {size:.0f} MB' for name, size in sizes.items())}")
    swarm.compose("down", "-v")
    try:
        row: dict[str, Any] = {"nodes": nodes, **start(swarm)}
        until(lambda: median(round for _, round in swarm.members().values()) >= 2, "two rounds")
        each, (seed,) = swarm.memory("node"), swarm.memory("bootstrap")
        row |= {"MB per node": median(each), "largest": max(each), "all GB": sum(each) / 1e3, "bootstrap MB": seed}
        say(f"memory: {median(each):.0f} MB a node, {sum(each) / 1e3:.1f} GB in all, bootstrap {seed:.0f} MB")
        row |= kill_some(swarm, min(KILLED, nodes // 2))
        row |= finish(swarm)
    finally:
        swarm.compose("down", "-v", "--timeout", "5")
    notes = [json.dumps({f"{name} image MB": round(size) for name, size in sizes.items()})]
    columns = {key: value if not isinstance(value, float) else round(value, 1) for key, value in row.items()}
    table = [{"what": key, "figure": str(value)} for key, value in columns.items()]
    show(f"containers: {nodes} nodes with docker compose", table, notes)


if __name__ == "__main__":
    main()
