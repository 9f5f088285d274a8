"""One call from settings to summary: load the policy and the task, run the swarm, write journal and summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.node.ports import Plan
from pfl_node.node.startup import check_reports
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal, Level
from pfl_node.sim.faults import Fault, node_ids
from pfl_node.sim.job_pool import Inline, JobPool
from pfl_node.sim.learner_port import Load, learners_of
from pfl_node.sim.outcome import Summary
from pfl_node.sim.segments import RunFiles
from pfl_node.sim.simulation import Progress, Simulation
from pfl_node.sim.snapshot import SegmentMark

MANY = 100  # nodes; larger runs do not journal single messages by default


def simulate(
    settings: Settings,
    *,
    nodes: int,
    faults: Sequence[Fault] = (),
    out: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    level: Level | None = None,
    costs: Costs | None = None,
    load: Load | None = None,
    jobs: int = 1,
    segment: int | None = None,
) -> Summary:
    """Run a swarm, then write `out`/journal.jsonl and `out`/summary.json, which replace those of an earlier run. A
    failed run leaves journal.jsonl.part. With `jobs` > 1, worker processes train; the result is the same. A run
    without faults can be resumable: after every `segment` rounds, `out` gets a snapshot of all nodes."""
    if settings.rounds is None:
        raise ConfigError("a simulation needs a number of rounds: give --rounds N")
    policy = load_policy(settings.policy.name)
    plan = Plan(policy, configure(policy, settings.policy.options))
    files = RunFiles(out, settings, nodes, segmented=segment is not None)
    mark = files.mark()
    wall, cpu = time.perf_counter() - mark.wall, time.process_time() - mark.cpu
    level = level or ("rounds" if nodes > MANY else "messages")
    load, step = load or learners_of(settings, nodes), segment or settings.rounds
    pool = JobPool(settings, node_ids(nodes), jobs) if jobs > 1 else Inline()
    begin = partial(Simulation, settings, plan, nodes=nodes, faults=faults, costs=costs, progress=progress)
    try:
        for round in range(mark.round, settings.rounds, step):
            until = round + step if round + step < settings.rounds else None
            with EventJournal(files.journal(round), level) as journal:
                swarm = begin(load, journal=journal, jobs=pool, mark=mark, until=until)
                files.restore(swarm, mark)
                swarm.run()
            load = swarm.learner  # the data is loaded once
            mark = swarm.mark(time.perf_counter() - wall, time.process_time() - cpu)
            if not swarm.held:  # every node has finished
                break
            files.keep(swarm, mark)
        summary = _summary(settings, swarm, mark)
    finally:
        pool.close()
    files.finish(summary)
    return summary


def _summary(settings: Settings, swarm: Simulation, mark: SegmentMark) -> Summary:
    records = swarm.records()
    ended = any(n.state == "left" for n in records)
    check_reports(settings.policy.name, sum(n.rounds for n in records), had_rounds=ended)
    return Summary(
        policy=settings.policy.name,
        task=settings.task.name,
        seed=settings.seed,
        rounds=settings.rounds,
        nodes=records,
        refused=swarm.refused(),
        models_lost=swarm.models_lost(),
        virtual_seconds=swarm.virtual_seconds,
        wall_seconds=mark.wall,
        cpu_seconds=mark.cpu,
    )
