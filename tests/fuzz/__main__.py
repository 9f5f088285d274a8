"""`python -m tests.fuzz`: send messages to a daemon that trains, and report. Exit code 1: there is a finding."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.processes import processes
from tests.fuzz.findings import read
from tests.fuzz.target_swarm import DEFAULT, Plan, TargetSwarm


def plan_of(words: list[str] | None = None) -> tuple[Plan, Path | None]:
    ask = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    ask.add_argument("--messages", type=int, default=100_000, help="calls, datagrams and connections")
    ask.add_argument("--seed", type=int, default=0, help="decides every message")
    ask.add_argument("--warm", type=int, default=20_000, help="messages before memory is measured")
    ask.add_argument("--peers", type=int, default=2, help="real nodes that learn with the daemon")
    ask.add_argument("--policy", default=DEFAULT)
    ask.add_argument("--only", type=int, help="send this message of the seed and no other")
    ask.add_argument("--case", type=read, help="send this message, as a finding has written it")
    ask.add_argument("--keep", type=Path, help="a folder for the logs and data of the nodes, which stay there")
    given = vars(ask.parse_args(words))
    keep: Path | None = given.pop("keep")
    if (given["only"] is not None or given["case"]) and "--messages" not in (words or sys.argv):
        given["messages"] = 1
    return Plan(**given), keep


def main(words: list[str] | None = None) -> int:
    plan, keep = plan_of(words)
    with tempfile.TemporaryDirectory(prefix="pfl-fuzz-") as folder:
        where = keep or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with processes(where) as start:
            target = TargetSwarm(plan, start, lambda line: print(line, flush=True))
            asyncio.run(target.run())
    findings = target.findings
    print(*findings.lines(), sep="\n")
    print(f"{findings.messages:,} messages with seed {plan.seed} in {time.monotonic() - began:.0f} s")
    for what, times in findings.different.items():
        print(f"FINDING ({times} times): {what}")
    print(f"{len(findings.different)} findings")
    return 1 if findings.different else 0


if __name__ == "__main__":
    sys.exit(main())
