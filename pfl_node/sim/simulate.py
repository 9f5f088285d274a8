"""One call from settings to summary: load the policy and the task, run the swarm, write journal and summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.learning.kernels import choose_kernels
from pfl_node.node.ports import Plan
from pfl_node.node.startup import check_reports
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal, Level
from pfl_node.sim.faults import Fault, node_ids
from pfl_node.sim.job_pool import Inline, JobPool, Jobs
from pfl_node.sim.learner_port import Load, learners_of
from pfl_node.sim.outcome import Summary
from pfl_node.sim.segments import RunFiles
from pfl_node.sim.simulation import Progress, Simulation, Watch, nobody_watches
from pfl_node.sim.snapshot import SegmentMark, may_be_held
from pfl_node.tracking.tracking import Observe, Tracking, both, tracking
from pfl_node.types import PeerId

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
    code: str = "",
    watch: Watch = nobody_watches,
    ended: Callable[[Simulation], None] | None = None,
) -> Summary:
    """Run a swarm, then write `out`/journal.jsonl and `out`/summary.json, which replace those of an earlier run. A
    failed run leaves journal.jsonl.part. With `jobs` > 1, worker processes train; the result is the same. With
    `segment`, a run without faults can be resumed by the same `code`: `out` gets a snapshot of all nodes after
    every `segment` rounds, or a log of the jobs. `ended` is called with the simulation when it is over."""
    if settings.rounds is None:
        raise ConfigError("a simulation needs a number of rounds: give --rounds N")
    choose_kernels()
    files = RunFiles(out, settings, nodes, segmented=segment is not None)
    level = level or ("rounds" if nodes > MANY else "messages")
    plan = _plan(settings)
    held = may_be_held(plan.policy)
    pool = files.job_log(code) if files.segments and not held else _pool(settings, nodes, jobs)
    step = segment if segment and held else settings.rounds
    begin = partial(Simulation, settings, plan, nodes=nodes, faults=faults, costs=costs)
    with closing(pool), tracking(settings) as tracks:
        watched = partial(_watched, watch, tracks)
        begin = partial(begin, progress=progress, jobs=pool, watch=watched)
        load = load or learners_of(settings, nodes)
        swarm, mark = _run(begin, files, load, level, settings.rounds, step)
        summary = _summary(settings, swarm, mark)
        if ended:
            ended(swarm)
    files.finish(summary)
    return summary


def _watched(watch: Watch, tracks: Tracking, node: PeerId) -> Observe | None:
    return both(watch(node), tracks.observer(node, node))


def _pool(settings: Settings, nodes: int, jobs: int) -> Jobs:
    return JobPool(settings, node_ids(nodes), jobs) if jobs > 1 else Inline()


def _run(
    begin: Callable[..., Simulation], files: RunFiles, load: Load, level: Level, rounds: int, step: int
) -> tuple[Simulation, SegmentMark]:
    """Simulate segment by segment, from the last snapshot on."""
    mark = files.mark()
    for round in range(mark.round, rounds, step):
        until = round + step if round + step < rounds else None
        with EventJournal(files.journal(round), level, files.writer) as journal:
            swarm = begin(load, journal=journal, mark=mark, until=until)
            files.restore(swarm, mark)
            swarm.run()
        load = swarm.learner  # the data is loaded once
        mark = swarm.mark(*files.stopwatch.read())
        if not swarm.held:  # every node has finished
            break
        files.keep(swarm, mark)
    return swarm, mark


def _plan(settings: Settings) -> Plan:
    policy = load_policy(settings.policy.name)
    return Plan(policy, configure(policy, settings.policy.options))


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
