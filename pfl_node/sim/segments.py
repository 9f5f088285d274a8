"""The files of a simulation. An interrupted run resumes from them, with the result of an uninterrupted one.

A run of a lockstep policy is simulated in segments: after every few rounds the whole swarm is held and written to
disk. Each node is held after its Report of the segment's last round and resumes at that virtual time. Its snapshot
includes the models it received and has not used, the models it published, and its statistics about its peers.

Under another policy, holding a node would change what it receives. Such a run logs the results of its jobs instead
(`job_log.py`).
"""

from __future__ import annotations

import json
import secrets
import shutil
from contextlib import ExitStack
from dataclasses import asdict
from heapq import merge
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError
from pfl_node.settings import Settings
from pfl_node.sim.job_log import JobLog, Stopwatch
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulation import Simulation
from pfl_node.sim.snapshot import NodeSnapshot, SegmentMark
from pfl_node.store.atomic import make_directory, sync_directory, write_atomic

FORMAT = "pfl-node segment 2"
ATTEMPT = "attempt"  # file in `segments` that names the process that owns the run


class RunFiles:
    """The directory of one run; None: nothing is written. Until a segmented run completes, `segments` holds the
    journals of the segments and the state after the last one. Each state is written atomically.

    The last process that began the run owns it. An earlier process may still be working because its scheduler lost
    it; it writes to its own files and stops before publishing them."""

    def __init__(self, out: Path | None, settings: Settings, nodes: int, *, segmented: bool) -> None:
        self.out = out
        self.segments = out / "segments" if out and segmented else None
        self.facts = {"run": settings.run, "task": settings.task.name, "policy": settings.policy.name}
        self.settings_text = json.dumps([FORMAT, settings.model_dump(mode="json"), nodes], sort_keys=True)
        for folder in (out, self.segments):
            if folder:
                make_directory(folder)
        self.stopwatch = Stopwatch()
        self.attempt = secrets.token_hex(4)
        self.writer = self.attempt if self.segments else ""
        if self.segments:
            write_atomic(self.segments / ATTEMPT, self.attempt.encode())

    def check_owner(self) -> None:
        try:
            owner = (self.segments / ATTEMPT).read_text() if self.segments else self.attempt
        except OSError:
            owner = ""
        if owner != self.attempt:
            raise PflError(f"another process has taken over {self.out}" if owner else f"{self.out} was stopped")

    def job_log(self, code: str) -> JobLog:
        """The log of a run that is not held. Other code would get other results."""
        assert self.segments is not None
        run = json.dumps([self.settings_text, code])
        return JobLog(self.segments, self.attempt, run, self.stopwatch, self.check_owner)

    def journal(self, round: int) -> Path | None:
        """The journal of the segment that begins with this round."""
        if self.segments:
            return self.segments / f"{round:06}.jsonl"
        return self.out / "journal.jsonl" if self.out else None

    def mark(self) -> SegmentMark:
        """The mark of the last complete state. If the settings have changed, the run starts over."""
        if not self.segments:
            return SegmentMark()
        for folder in sorted(self.segments.glob("??????"), reverse=True):
            facts = json.loads((folder / "swarm.json").read_text())
            if facts["told"] == self.settings_text:
                mark = SegmentMark(**facts["mark"])
                self.stopwatch.set(mark.wall, mark.cpu)
                return mark
        for old in self.segments.glob("*.jsonl"):
            old.unlink()  # otherwise the merged journal would contain its rounds
        return SegmentMark()

    def keep(self, swarm: Simulation, mark: SegmentMark) -> None:
        """Save the state between two segments, then delete the old one after the new one has been renamed into
        place."""
        assert self.segments is not None
        self.check_owner()
        made, state = self.segments / f"next-{self.attempt}", self.segments / f"{mark.round:06}"
        made.mkdir()
        for id, held in swarm.held.items():
            held.save(made / f"{id}.safetensors", swarm.world.nodes[id].learner.layout, **self.facts)
        facts = {"told": self.settings_text, "mark": asdict(mark)}
        write_atomic(made / "swarm.json", json.dumps(facts).encode())
        self.check_owner()
        shutil.rmtree(state, ignore_errors=True)
        made.rename(state)
        sync_directory(self.segments)
        for old in self.segments.glob("??????"):
            if old != state:
                shutil.rmtree(old)

    def restore(self, swarm: Simulation, mark: SegmentMark) -> None:
        if not self.segments or mark.round == 0:
            return
        for id, node in swarm.world.nodes.items():
            path = self.segments / f"{mark.round:06}" / f"{id}.safetensors"
            node.resume(NodeSnapshot.load(path, node.learner, **self.facts))

    def finish(self, summary: Summary) -> None:
        """Write the summary; merge the journals of the segments by time, delete the states. Segments may overlap:
        one begins when its first node resumes, possibly before the last node of the previous segment was held."""
        if not self.out:
            return
        if self.segments:
            self.check_owner()
            whole = self.segments / f"whole-{self.attempt}"
            with whole.open("wb") as file, ExitStack() as open_parts:
                parts = sorted(self.segments.glob("*.jsonl"))
                lines = [open_parts.enter_context(part.open("rb")) for part in parts]
                file.writelines(merge(*lines, key=_time))
            self.check_owner()
            whole.replace(self.out / "journal.jsonl")
        summary.write(self.out / "summary.json")
        if self.segments:
            shutil.rmtree(self.segments)


def _time(line: Any) -> float:
    return float(json.loads(line)["time"])
