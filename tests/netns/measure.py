"""`python -m tests.netns.measure WHAT`: real processes in the lab; figures of docs/reliability/measurements.md.

Prints each figure beside its aim; exit code 1 when one is not reached, 2 when the lab cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.netns.expectations import Figures, Wishes
from tests.netns.namespaces import go_inside
from tests.netns.netns_lab import Lab
from tests.netns.scenarios import SCENES
from tests.netns.swarm import PACES


def main() -> int:
    wishes = parse()
    go_inside("tests.netns.measure")
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pfl-chaos-"))
    figures = Figures()
    try:
        for what in wishes.what:
            SCENES[what](wishes, figures, lambda name: Lab(wishes.nodes, folder / name, wishes.seed))
    except KeyboardInterrupt:
        print("broken off", file=sys.stderr)
        return 130
    finally:
        if wishes.keep:
            shutil.copytree(folder, wishes.keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    print(figures.table())
    print(f"command: python -m tests.netns.measure {' '.join(sys.argv[1:])}   {os.cpu_count()} cores", end="   ")
    print(f"{time.monotonic() - began:.0f} s   load {os.getloadavg()[0]:.1f}")
    if wishes.json:
        wishes.json.write_text(json.dumps(figures.rows, indent=1) + "\n")
    return 0 if figures.reached else 1


def parse() -> Wishes:
    parser = argparse.ArgumentParser("python -m tests.netns.measure", description=__doc__)
    add = parser.add_argument
    add("what", nargs="+", choices=list(SCENES), help="scenes, one after the other")
    add("--nodes", type=int, default=50)
    add("--light", action="store_true", help="members that do not train: the bootstrap service")
    add(
        "--policy",
        choices=list(PACES),
        default="el",
        help="el: in lockstep; gossip: at a pace that few cores bear",
    )
    add("--seconds", type=float, default=600, help="churn: how long")
    add("--every", type=float, default=5, help="churn: seconds between two kills")
    add("--down", type=float, default=10, help="churn: seconds until one that was killed is started again")
    add("--apart", action="store_true", help="every node is a python of its own, 200 MB each, not forked from one")
    add("--parted", type=float, default=60, help="partition: how long")
    add("--watch", type=float, default=60, help="views: seconds in which nobody may be taken for dead")
    add("--rounds", type=int, default=40, help="kill: of the run")
    add("--delay", type=float, default=0, help="ms, each way")
    add("--jitter", type=float, default=0, help="ms more at most")
    add("--loss", type=float, default=0, help="per cent")
    add("--seed", type=int, default=0)
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all nodes; repeatable")
    add("--json", type=Path, help="write the figures there, too")
    add("--keep", type=Path, help="copy logs and journals there")
    return Wishes(**vars(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
