"""A simulation in segments: after every `every` rounds the whole swarm is held and written to disk, so that an
interrupted run resumes from there with the same result as an uninterrupted one.

Each node is held after its Report of the segment's last round and resumes at that virtual time. Its snapshot
includes the models it received and has not used, the models it published, and what it knows about its peers. So
a run of a lockstep policy in segments is identical to one without, byte for byte. Nodes of other policies do not
wait for each other: they resume together, once the last one has been held.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from heapq import merge
from pathlib import Path
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.node.ports import Plan
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal, Level
from pfl_node.sim.learner_port import Load, learners_of
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import MANY, summary_of
from pfl_node.sim.simulation import Progress, Simulation
from pfl_node.sim.snapshot import NodeSnapshot, goes_on_alone
from pfl_node.store.atomic import sync_directory, write_atomic

FORMAT = "pfl-node segment 2"


@dataclass(frozen=True, slots=True)
class SegmentMark:
    """The position of a run between two segments."""

    round: int = 0  # the next one
    now: float = 0.0  # virtual seconds
    wall: float = 0.0
    cpu: float = 0.0


def simulate_in_segments(
    settings: Settings,
    *,
    nodes: int,
    every: int,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    level: Level | None = None,
    costs: Costs | None = None,
    load: Load | None = None,
) -> Summary:
    """Like `simulate`, but resumable: until the run completes, `out` holds the journals of the segments and the
    state after the last one; after that, `journal.jsonl` and `summary.json`."""
    assert settings.rounds is not None
    policy = load_policy(settings.policy.name)
    plan = Plan(policy, configure(policy, settings.policy.options))
    shelf = SegmentStore(out, settings, nodes)
    level = level or ("rounds" if nodes > MANY else "messages")
    course = Course(settings, plan, nodes, shelf, level, costs, progress)
    learners = load or learners_of(settings, nodes)
    mark, swarm = shelf.mark(), None
    while swarm is None or mark.round < settings.rounds:
        until = min(mark.round + every, settings.rounds)
        swarm, mark = course.segment(mark, until, learners if swarm is None else _the_same(swarm))
        if until < settings.rounds:
            shelf.keep(swarm, mark)
    summary = summary_of(settings, swarm, wall=mark.wall, cpu=mark.cpu)
    shelf.finish(summary)
    return summary


def _the_same(swarm: Simulation) -> Load:
    """Reuse the learners of the previous segment, so that their data is loaded once."""
    return lambda _, node: swarm.world.nodes[node].learner


@dataclass(frozen=True, slots=True)
class Course:
    """The parameters shared by all segments of a run."""

    settings: Settings
    plan: Plan
    nodes: int
    shelf: SegmentStore
    level: Level
    costs: Costs | None
    progress: Callable[[Progress], None] | None

    def segment(self, mark: SegmentMark, until: int, learners: Load) -> tuple[Simulation, SegmentMark]:
        """Run from `mark` up to round `until`; returns the held swarm and its mark."""
        wall, cpu = time.perf_counter(), time.process_time()
        journal = EventJournal(self.shelf.journal(mark.round), self.level)
        swarm = Simulation(
            self.settings,
            self.plan,
            learners,
            nodes=self.nodes,
            journal=journal,
            costs=self.costs,
            progress=self.progress,
            now=mark.now,
            done=mark.round * self.nodes,
        )
        self.shelf.restore(swarm, mark)
        swarm.world.until = None if until == self.settings.rounds else until
        try:
            swarm.run()
        finally:
            journal.close()
        journal.publish()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        now = swarm.virtual_seconds
        if goes_on_alone(self.plan.policy):
            now = min((held.at for held in swarm.held.values() if held.state == "up"), default=now)
        return swarm, SegmentMark(until, now, mark.wall + spent[0], mark.cpu + spent[1])


class SegmentStore:
    """The folder of one run. Each state is written atomically."""

    def __init__(self, out: Path, settings: Settings, nodes: int) -> None:
        self.out = out
        self.facts = {"run": settings.run, "task": settings.task.name, "policy": settings.policy.name}
        self.told = json.dumps([FORMAT, settings.model_dump(mode="json"), nodes], sort_keys=True)
        try:
            (out / "segments").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {out}: {error.strerror or error}") from error

    def journal(self, round: int) -> Path:
        return self.out / "segments" / f"{round:06}.jsonl"

    def _state(self, round: int) -> Path:
        return self.out / "segments" / f"{round:06}"

    def mark(self) -> SegmentMark:
        """The mark of the last complete state. If the settings have changed, the run starts over."""
        for folder in sorted((self.out / "segments").glob("??????"), reverse=True):
            facts = json.loads((folder / "swarm.json").read_text())
            if facts["told"] == self.told:
                return SegmentMark(**facts["mark"])
        for old in (self.out / "segments").glob("*.jsonl"):
            old.unlink()  # otherwise the merged journal would contain its rounds
        return SegmentMark()

    def keep(self, swarm: Simulation, mark: SegmentMark) -> None:
        """Save the state, then delete the old one after the new one has been renamed into place."""
        made = self.out / "segments" / "next"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for id, held in swarm.held.items():
            held.save(made / f"{id}.safetensors", swarm.world.nodes[id].learner.layout, **self.facts)
        facts = {"told": self.told, "mark": asdict(mark)}
        write_atomic(made / "swarm.json", json.dumps(facts).encode())
        shutil.rmtree(self._state(mark.round), ignore_errors=True)
        made.rename(self._state(mark.round))
        sync_directory(self.out / "segments")
        for old in (self.out / "segments").glob("??????"):
            if old != self._state(mark.round):
                shutil.rmtree(old)

    def restore(self, swarm: Simulation, mark: SegmentMark) -> None:
        if mark.round == 0:
            return
        folder = self._state(mark.round)
        for id, node in swarm.world.nodes.items():
            node.resume(NodeSnapshot.load(folder / f"{id}.safetensors", node.learner, **self.facts))

    def finish(self, summary: Summary) -> None:
        """Merge the journals by time and delete the states. Segments may overlap: one begins when its first node
        resumes, possibly before the last node of the previous segment was held."""
        parts = sorted((self.out / "segments").glob("*.jsonl"))
        whole = self.out / "journal.jsonl.part"
        with whole.open("wb") as file, ExitStack() as open_parts:
            lines = [open_parts.enter_context(part.open("rb")) for part in parts]
            file.writelines(merge(*lines, key=_time))
        whole.replace(self.out / "journal.jsonl")
        summary.write(self.out / "summary.json")
        shutil.rmtree(self.out / "segments")


def _time(line: Any) -> float:
    return float(json.loads(line)["time"])
