"""What `docker compose up --scale node=N` does in its first minutes: joined, false deaths, console lines, rounds.

`python -m benchmarks.compose_up [N] [SECONDS] [COMPOSE FILES...]` with existing images. No container is killed, so
every death that a member reports is false.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.containers import PROJECT, ROOT, Swarm, say
from benchmarks.report import show

FALSE_DEATH = re.compile(r"\bdied\b")


class Console:
    """The foreground process, with its output in a file."""

    def __init__(self, swarm: Swarm, file: Path) -> None:
        self._file = file
        words = [
            "docker",
            "compose",
            "-p",
            PROJECT,
            *swarm.files,
            "up",
            "--no-build",
            "--scale",
            f"node={swarm.nodes}",
        ]
        self._process = subprocess.Popen(
            words, cwd=ROOT / "compose", stdout=file.open("w"), stderr=subprocess.STDOUT
        )

    def lines(self) -> list[str]:
        return self._file.read_text(errors="replace").splitlines()

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """It ends by itself when its containers are gone."""
        self._process.kill()
        self._process.wait()


def measure(swarm: Swarm, console: Console, seconds: float) -> dict[str, Any]:
    began, joined_at, rounds, memory = time.monotonic(), None, [(0.0, 0.0)], 0.0
    known: dict[str, tuple[str, int]] = {}
    while (passed := time.monotonic() - began) < seconds and not console.over:
        time.sleep(5)
        try:
            known |= swarm.members()
        except Exception as error:
            say(f"the bootstrap does not answer: {type(error).__name__}")
            continue
        if joined_at is None and len(known) >= swarm.nodes:
            joined_at = passed
            say(f"{swarm.nodes} joined after {passed:.0f} s")
        if not memory and joined_at is not None and passed > joined_at + 30:
            memory = median(swarm.memory("node"))
        if known:
            rounds.append((passed, median(round for _, round in known.values())))
    begun = [(at, round) for at, round in rounds if round > 0]
    minutes = (begun[-1][0] - begun[0][0]) / 60 if len(begun) > 1 else 0.0
    lines = console.lines()
    return {
        "nodes": swarm.nodes,
        "seconds observed": round(passed),
        "joined": len(known),
        "all joined after s": "not" if joined_at is None else round(joined_at),
        "false deaths": sum(bool(FALSE_DEATH.search(line)) for line in lines),
        "console lines": len(lines),
        "MB per node": round(memory),
        "median round": begun[-1][1] if begun else 0,
        "rounds per minute": round((begun[-1][1] - begun[0][1]) / minutes, 1) if minutes else 0,
    }


def main() -> None:
    if not shutil.which("docker"):
        print("compose_up: skipped, no Docker engine is available")
        return
    nodes = int(sys.argv[1]) if sys.argv[1:] else 50
    seconds = float(sys.argv[2]) if sys.argv[2:] else 300.0
    swarm = Swarm(nodes, sys.argv[3:])
    swarm.compose("down", "-v")
    file = Path(f"/tmp/{PROJECT}-console.txt")
    console = Console(swarm, file)
    try:
        row = measure(swarm, console, seconds)
    finally:
        swarm.compose("down", "-v", "--timeout", "5")
        console.close()
    table = [{"what": key, "figure": str(value)} for key, value in row.items()]
    show(f"docker compose up --scale node={nodes}", table, [f"the console: {file}"])


if __name__ == "__main__":
    main()
