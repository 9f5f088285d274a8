"""What a swarm's parent process sends to its workers, as JSON, and the directory with their files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings, TrackSettings
from pfl_node.sim.worker_process import JsonOrder

START_WAIT = 120.0  # seconds: the least that a node waits for the others to load


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """What an experiment records of the nodes (`trace.py`)."""

    every: int  # rounds between two saved states
    messages: bool  # record the senders of models
    began: float  # when the swarm was started, in seconds since 1970
    seconds: float  # that the swarm had run before it was resumed
    sent: tuple[int, ...]  # bytes that each node had sent by then


@dataclass(frozen=True, slots=True)
class WorkerSpec(JsonOrder):
    settings: Settings
    nodes: int  # in the whole swarm
    indices: tuple[int, ...]  # of this worker
    seed_address: str
    out: Path
    trace: TraceSpec | None = None

    def node_settings(self, index: int) -> Settings:
        """The settings of one node: its place in the task, its directory, and to wait for all others."""
        s = self.settings
        name = node_name(index)
        return s.model_copy(
            update={
                "name": name,
                "listen": "127.0.0.1:0",
                "advertise": None,
                "peer_seed": (self.seed_address,),
                "data_dir": self.out / "nodes" / name,
                "http": s.http.model_copy(update={"listen": page_address(s, index)}),
                "task": s.task.model_copy(update={"index": index, "nodes": self.nodes}),
                "track": s.track if index < s.track.nodes else TrackSettings(),
                "start": s.start.model_copy(
                    update={"peers": self.nodes - 1, "wait": max(START_WAIT, s.start.wait)}
                ),
            }
        )


def events_path(out: Path, name: str) -> Path:
    return out / "rows" / f"{name}.jsonl"


def state_path(out: Path, part: int, name: str) -> Path:
    """The state of a node after `part` times `every` rounds."""
    return out / "states" / f"{part:06}" / f"{name}.safetensors"


def page_address(settings: Settings, index: int) -> str | None:
    """Node i serves its page on the port of the settings + i."""
    if settings.http.listen is None:
        return None
    _, first = parse_address(settings.http.listen, what="http", any_port=True)
    if not first or first + index > 65535:
        wrong = f"http {settings.http.listen!r} leaves no port for node {index} of the swarm"
        raise ConfigError(f"{wrong}: give a port number; node i listens on that port + i")
    return f"{settings.http.listen.rpartition(':')[0]}:{first + index}"


def node_name(index: int) -> str:
    return f"node-{index:03d}"


def split(nodes: int, workers: int) -> list[tuple[int, ...]]:
    """Node i goes to worker i mod W, so that every worker hosts nodes of each cluster."""
    return [tuple(range(w, nodes, workers)) for w in range(min(workers, nodes))]


@contextmanager
def directory(out: Path | None) -> Iterator[Path]:
    """`out`, or a temporary one. If no node got as far as its journal, the directory is removed."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="pfl-swarm-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    nodes = out / "nodes"
    if nodes.exists() or (out / "summary.json").exists():
        raise ConfigError(f"{out} holds an earlier run: choose another directory with --out, or remove it")
    made = not out.exists()
    try:
        nodes.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot create {nodes}: {error.strerror or error}") from error
    try:
        yield out
    finally:
        if not any(nodes.glob("*/journal.jsonl")):
            shutil.rmtree(nodes, ignore_errors=True)
            if made:
                with suppress(OSError):
                    out.rmdir()
