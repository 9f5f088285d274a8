"""CPU time of a quick lab experiment against the bare training and evaluation in it.

The benchmark runs the cells as a worker does. After every training or scoring job, a bare PyTorch loop repeats it
with the same number and sizes of batches, samples and network, so that noise of the machine affects both alike.
Everything else counts as overhead of the lab: starting processes, reading data, averaging, messages, journal,
segments, and the report with its plots. One additional run of `pfl-node lab run` checks that nothing is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks.bare import Bare, Counted, fit
from benchmarks.parts import Parts
from benchmarks.report import show
from pfl_node import aggregate
from pfl_node.errors import PflError
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.resumption import segment_of
from pfl_node.lab.spec import load
from pfl_node.learning.kernels import worker_environment
from pfl_node.learning.task import Place
from pfl_node.learning.tasks import load_task
from pfl_node.learning.train_options import BUILT_IN, resolve
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.segments import RunFiles
from pfl_node.sim.simulate import simulate
from pfl_node.types import PeerId

REAL, EMBEDDED = "facade-settlement", "digits-clusters"
ROUNDS = {REAL: 12}  # fewer than the spec's, to finish in minutes
AIM = 1.10
BARE, LEARNING, DATA = "bare", "learning", "data: read, turned, shared out"


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    sets = [f"task.root={json.dumps(str(asked.data_root.resolve()))}"] if asked.data_root else []
    sets += [f"rounds={asked.rounds}"] if asked.rounds else []
    warm_up()
    try:
        experiment = load(asked.name, "quick", seeds=asked.seeds, sets=sets)
        repeats = [in_parts(experiment) for _ in range(asked.repeats)]
    except PflError as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        run = spent("lab", "run", *words(asked), "--workers", "1", "--out", folder)
        tell(experiment, load(asked.name, "quick"), repeats, once(asked, folder), run)


def arguments() -> argparse.Namespace:
    ask = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__.splitlines()[0])
    ask.add_argument("name", nargs="?", help=f"an experiment; otherwise {REAL}, or {EMBEDDED} without data")
    ask.add_argument("--data-root", type=Path, help="folder of the data sets")
    ask.add_argument("--rounds", type=int, help="override the spec's rounds; 0: keep them")
    ask.add_argument("--seeds", type=int, default=1)
    ask.add_argument("--repeats", type=int, default=3)
    asked = ask.parse_args()
    asked.name = asked.name or (REAL if asked.data_root else EMBEDDED)
    asked.rounds = ROUNDS.get(asked.name, 0) if asked.rounds is None else asked.rounds
    return asked


def words(asked: argparse.Namespace) -> list[str]:
    """The command line of the experiment."""
    found = [asked.name, "--seeds", str(asked.seeds)]
    found += ["--data-root", str(asked.data_root)] if asked.data_root else []
    return found + (["--set", f"rounds={asked.rounds}"] if asked.rounds else [])


def warm_up() -> None:
    """Use torch's optimisers once: they import modules on first use, which must not count for the loop."""
    for optimizer in ("sgd", "adam"):
        how = resolve(({"optimizer": optimizer}, BUILT_IN))
        fit(nn.Linear(2, 2), torch.zeros(8, 2), torch.zeros(8, dtype=torch.long), batches=1, how=how)


# -- where the seconds go ----------------------------------------------------------------------------------------


def in_parts(experiment: Experiment) -> dict[str, float]:
    """CPU seconds of all cells, by part."""
    parts = Parts()
    for cell in experiment.cells:
        trace(cell, parts)
    return {part: seconds for part, seconds in parts.seconds.items() if part != "outside"}


def trace(cell: Cell, parts: Parts) -> None:
    """Run the cell as a worker does, together with the bare loop."""
    bare = Bare(tuned=True)

    def learner(index: int, node: PeerId) -> Counted:
        with parts.of(DATA):
            place = Place(index=index, nodes=cell.nodes, seed=cell.settings.seed, node_id=node)
            task = load_task(cell.settings.task, place)
            made = Counted(index, task, cell.settings.train)
        with parts.of("outside"):
            bare.add(task)
        made.tell = bare_too
        return made

    bare_too = parts.wrapped(bare.do, BARE)
    places = (
        (Counted, "fresh", LEARNING),
        (Counted, "train", LEARNING),
        (Counted, "score", LEARNING),
        (Counted, "confusion", LEARNING),
        (aggregate, "combine", "averaging"),
        (EventJournal, "write", "journal"),
        (RunFiles, "keep", "segments: written"),
        (RunFiles, "restore", "segments: read again"),
        (RunFiles, "finish", "segments: put together"),
    )
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as out, parts.around(*places), parts.of("the rest"):
        simulate(cell.settings, nodes=cell.nodes, segment=segment_of(cell), out=Path(out), load=learner)


def once(asked: argparse.Namespace, folder: str) -> dict[str, float]:
    """The costs that do not grow with the experiment."""
    start = spent("lab", "show", asked.name)
    return {
        "start: the command": start,
        "start: a worker": spent_by("-c", "import pfl_node.sim.sim_worker, pfl_node.learning.learner"),
        "report and plots": spent("lab", "report", folder) - start,
    }


def spent(*args: str) -> float:
    return spent_by("-m", "pfl_node", *args)


def spent_by(*args: str) -> float:
    """CPU seconds of a Python process and all its descendants."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, **worker_environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -- the tables --------------------------------------------------------------------------------------------------


def tell(
    experiment: Experiment,
    whole: Experiment,
    repeats: Sequence[dict[str, float]],
    costs: Mapping[str, float],
    run: float,
) -> None:
    """Extrapolate: `costs` occur once, data once per cell, the rest per round; `whole` is the full experiment."""
    times, cells = size(whole) / size(experiment), len(whole.cells) / len(experiment.cells)
    data, fixed = repeats[0][DATA], sum(costs.values())  # later repeats have the data in memory
    bares = [parts[BARE] for parts in repeats]
    rest = [sum(parts.values()) - parts[DATA] - parts[BARE] for parts in repeats]
    ratios = [(mine + data + fixed) / bare for mine, bare in zip(rest, bares, strict=True)]
    expected = [
        (mine * times + data * cells + fixed) / (bare * times) for mine, bare in zip(rest, bares, strict=True)
    ]
    total = {
        "experiment": experiment.name,
        "node-rounds": size(experiment),
        "lab, CPU s": median(rest) + data + fixed,
        "bare, CPU s": median(bares),
        "ratio": median(ratios),
        "without start, data, report": median(m / b for m, b in zip(rest, bares, strict=True)),
        f"to expect of all {size(whole):,}": median(expected),
        "spread": f"{min(expected):.2f}-{max(expected):.2f}",
    }
    notes = [
        f"{len(repeats)} repeats, one thread and one worker; bare: channels last, evaluation in batches of 64",
        f"a separate `pfl-node lab run`: {run:.1f} CPU s",
        f"aim: a ratio of at most {AIM:.2f} for a whole quick experiment; this one has fewer rounds",
    ]
    show("a quick experiment against its bare training and evaluation", [total], notes)
    tell_parts({part: median(r[part] for r in repeats) for part in repeats[0]} | {DATA: data} | dict(costs))


def tell_parts(parts: dict[str, float]) -> None:
    bare = parts.pop(BARE)
    parts["learning beyond the bare loop"] = parts.pop(LEARNING) - bare
    rows = [
        {"part": part, "CPU s": seconds, "% of bare": 100 * seconds / bare}
        for part, seconds in sorted(parts.items(), key=lambda pair: -pair[1])
    ]
    show("where the rest goes", rows, part="parts")


def size(experiment: Experiment) -> int:
    """Node-rounds of all cells."""
    return sum(cell.nodes * (cell.settings.rounds or 0) for cell in experiment.cells)


if __name__ == "__main__":
    main()
