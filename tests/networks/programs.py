"""The processes of a swarm on the hosts of a small internet: seeds, nodes, and what they report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pfl_node.security.ca import Authority
from tests.networks.internet import Host

ROOT = Path(__file__).resolve().parents[2]
PORT = 7946
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Program:
    """A running seed or node; its data and its log are in `folder`."""

    name: str
    host: Host
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"{self.host.address}:{PORT}"

    @property
    def id(self) -> str:
        return str(json.loads((self.folder / "identity.json").read_text())["id"])

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return (self.folder.parent / f"{self.name}.log").read_text()

    def status(self, *, tls: bool = True) -> dict[str, Any]:
        """What the program itself reports; empty while it does not answer."""
        words = (
            "status",
            self.address,
            *(("--data-dir", self.folder) if tls else ()),
            "--format",
            "json",
            "--timeout",
            "20",
        )
        done = subprocess.run(
            self.host.command(sys.executable, "-m", "pfl_node", *words),
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            check=False,
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds in the journal."""
        journal = self.folder / "journal.jsonl"
        if not journal.exists():
            return []
        lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line.get("event") == "round"]

    def durations(self) -> list[float]:
        """Of the rounds after the first, in seconds."""
        return [b["time"] - a["time"] for a, b in pairwise(self.rounds())]

    def round_seconds(self, *, skip: int = 3) -> float:
        """The median duration of a round, without the first ones."""
        return median(self.durations()[skip:])


@dataclass
class Swarm:
    """Programs with certificates of one CA. Ends them on exit."""

    folder: Path
    programs: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ca = Authority.create(self.folder / "ca", "the sites", 10)

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for program in self.programs:
            program.kill()
        if kind is not None:
            for program in self.programs:
                print(f"--- {program.name}", *program.log().splitlines()[-30:], sep="\n")

    def identity(self, host: Host) -> str:
        """The id of the program that will run on this host."""
        return str(self._ca.issue_for(self._folder(host), name=host.name, days=1).id)

    def seed(
        self,
        host: Host,
        *words: object,
        module: str = "bootstrap",
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        listen = ("--listen", f"{host.address}:{PORT}")
        return self._start(host, module, *listen, *words, environment=environment)

    def node(self, host: Host, *words: object) -> Program:
        name = ("--name", host.name, "--listen", f"0.0.0.0:{PORT}", "--log-format", "json")
        return self._start(host, "pfl_node", *name, *words)

    def _folder(self, host: Host) -> Path:
        return self.folder / host.name

    def _start(
        self, host: Host, module: str, *words: object, environment: Mapping[str, str] | None = None
    ) -> Program:
        folder = self._folder(host)
        if "--insecure" not in words and not folder.exists():
            self._ca.issue_for(folder, name=host.name, days=1)
        with (self.folder / f"{host.name}.log").open("ab") as log:
            process = subprocess.Popen(
                host.command(sys.executable, "-m", module, "--data-dir", folder, *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
            )
        program = Program(host.name, host, folder, process)
        self.programs.append(program)
        return program


def until(holds: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait; the seconds that it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - began
