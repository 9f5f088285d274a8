"""CPU of a quick experiment of the lab against the bare training and evaluation in it.

`pfl-node lab run` and a bare PyTorch loop take turns, so that both feel the machine's moods: the same networks on
the same data, the same batches, scores and measurements. All that the lab does besides counts against it: starting
its processes, reading data, averaging, messages, journal, segments, the report with its plots.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.bare import Bare, Counted, Job, Work
from benchmarks.parts import Parts
from benchmarks.report import show
from pfl_node import aggregate
from pfl_node.errors import PflError
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.runner import segment_of
from pfl_node.lab.spec import Wishes, load
from pfl_node.learning.task import Place, Task
from pfl_node.learning.tasks import load_task
from pfl_node.sim.crew import ONE_THREAD
from pfl_node.sim.journal import Journal
from pfl_node.sim.segments import Shelf, simulate_in_segments
from pfl_node.types import PeerId

REAL, EMBEDDED = "facade-settlement", "digits-clusters"
ROUNDS = {REAL: 12}  # instead of the spec's, so that it takes minutes
AIM = 1.10
LEARNING = "learning"


@dataclass(frozen=True)
class Traced:
    """A cell that was run once, to see what is computed in it."""

    tasks: list[Task]
    jobs: list[Job]


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    given = {"task.root": str(asked.data_root.resolve())} if asked.data_root else {}
    sets = [f"rounds={asked.rounds}"] if asked.rounds else []
    experiment = load(asked.name, "quick", seeds=asked.seeds, wishes=Wishes(given, sets))
    parts = Parts()
    try:
        cells = [trace(cell, parts) for cell in experiment.cells]
    except PflError as error:
        raise SystemExit(str(error)) from None
    bares = [Bare(cell.tasks, tuned=True) for cell in cells]
    for bare, cell in zip(bares, cells, strict=True):  # torch's optimisers import much when they are first used
        bare.replay([next(job for job in cell.jobs if job.kind == kind) for kind in {j.kind for j in cell.jobs}])
    labs, loops, costs = list[float](), list[float](), dict[str, float]()
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
            labs.append(spent("lab", "run", *words(asked), "--workers", "1", "--out", folder))
            costs = around(asked, folder)
        loops.append(sum(bare.replay(cell.jobs) for bare, cell in zip(bares, cells, strict=True)))
    tell(experiment, labs, loops, parts.seconds, costs, times=size(load(asked.name, "quick")) / size(experiment))


def arguments() -> argparse.Namespace:
    ask = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__.splitlines()[0])
    ask.add_argument("name", nargs="?", help=f"an experiment; otherwise {REAL}, or {EMBEDDED} without data")
    ask.add_argument("--data-root", type=Path, help="where data sets are")
    ask.add_argument("--rounds", type=int, help="instead of the spec's; 0: as the spec says")
    ask.add_argument("--seeds", type=int, default=1)
    ask.add_argument("--repeats", type=int, default=3)
    asked = ask.parse_args()
    asked.name = asked.name or (REAL if asked.data_root else EMBEDDED)
    asked.rounds = ROUNDS.get(asked.name, 0) if asked.rounds is None else asked.rounds
    return asked


def words(asked: argparse.Namespace) -> list[str]:
    """The experiment as on a command line."""
    found = [asked.name, "--seeds", str(asked.seeds)]
    found += ["--data-root", str(asked.data_root)] if asked.data_root else []
    return found + (["--set", f"rounds={asked.rounds}"] if asked.rounds else [])


# -- what is in it -----------------------------------------------------------------------------------------------


def trace(cell: Cell, parts: Parts) -> Traced:
    """Run the cell as a worker does, with learners that count."""
    work, tasks = Work(), list[Task]()

    def learner(index: int, node: PeerId) -> Counted:
        with parts.of("data: read, turned, shared out"):
            place = Place(index=index, nodes=cell.nodes, seed=cell.settings.seed, node_id=node)
            tasks.append(load_task(cell.settings.task, place))
            made = Counted(index, tasks[-1], cell.settings.train)
        made.work = work
        return made

    wrapped = (
        (Counted, "fresh", LEARNING),
        (Counted, "train", LEARNING),
        (Counted, "score", LEARNING),
        (Counted, "confusion", LEARNING),
        (aggregate, "combine", "averaging"),
        (Journal, "write", "journal"),
        (Shelf, "keep", "segments: written"),
        (Shelf, "restore", "segments: read again"),
        (Shelf, "finish", "segments: put together"),
    )
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as out, parts.around(*wrapped), parts.of("the rest"):
        simulate_in_segments(cell.settings, nodes=cell.nodes, every=segment_of(cell), out=Path(out), load=learner)
    return Traced(tasks, work.jobs)


def around(asked: argparse.Namespace, folder: str) -> dict[str, float]:
    """What does not depend on the number of rounds."""
    start = spent("lab", "show", asked.name)
    return {
        "start: the command": start,
        "start: a worker": spent_by("-c", "import pfl_node.sim.worker, pfl_node.learning.learner"),
        "report and plots": spent("lab", "report", folder) - start,
    }


def spent(*args: str) -> float:
    return spent_by("-m", "pfl_node", *args)


def spent_by(*args: str) -> float:
    """CPU seconds of a python and of all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *args], env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size(experiment: Experiment) -> int:
    """Rounds of all nodes of all cells."""
    return sum(cell.nodes * (cell.settings.rounds or 0) for cell in experiment.cells)


# -- the tables --------------------------------------------------------------------------------------------------


def tell(
    experiment: Experiment,
    labs: Sequence[float],
    loops: Sequence[float],
    parts: Mapping[str, float],
    costs: Mapping[str, float],
    times: float,
) -> None:
    """`costs` do not grow with the experiment, which is so many `times` as large at its own quick scale."""
    lab, bare, once = median(labs), median(loops), sum(costs.values())
    ratios = [a / b for a, b in zip(labs, loops, strict=True)]
    total = {
        "experiment": experiment.name,
        "node-rounds": size(experiment),
        "lab, CPU s": lab,
        "bare, CPU s": bare,
        "ratio": median(ratios),
        "spread": f"{min(ratios):.2f}-{max(ratios):.2f}",
        "start and report, CPU s": once,
        "ratio without them": (lab - once) / bare,
        f"ratio to expect of all {size(experiment) * times:,.0f}": ((lab - once) * times + once) / (bare * times),
    }
    notes = [
        f"{len(labs)} repeats, one thread and one worker; bare: channels last, evaluation in batches of 64",
        f"aim: a ratio of at most {AIM:.2f} for a whole quick experiment, whose rounds this one has a part of",
    ]
    show("a quick experiment against its bare training and evaluation", [total], notes)
    found = {**costs, **parts}
    del found["outside"]
    found["learning beyond the bare loop"] = found.pop(LEARNING) - bare
    rows: list[dict[str, Any]] = [
        {"part": part, "CPU s": seconds, "% of bare": 100 * seconds / bare}
        for part, seconds in sorted(found.items(), key=lambda pair: -pair[1])
    ]
    show(
        "where the rest goes",
        rows,
        ["the parts are of a run of their own, so their sum is about the rest"],
        "parts",
    )


if __name__ == "__main__":
    main()
