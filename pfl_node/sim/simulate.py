"""One call from settings to summary: load the policy and the task, run the swarm, write journal and summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pfl_node.errors import ConfigError, StoreError
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
from pfl_node.sim.simulation import Progress, Simulation

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
) -> Summary:
    """Run a swarm, then write `out`/journal.jsonl and `out`/summary.json, which replace those of an earlier run. A
    failed run leaves journal.jsonl.part. With `jobs` > 1, worker processes train; the result is the same."""
    if settings.rounds is None:
        raise ConfigError("a simulation needs a number of rounds: give --rounds N")
    wall, cpu = time.perf_counter(), time.process_time()
    policy = load_policy(settings.policy.name)
    plan = Plan(policy, configure(policy, settings.policy.options))
    pool = JobPool(settings, node_ids(nodes), jobs) if jobs > 1 else Inline()
    journal = EventJournal(_file_in(out, "journal.jsonl"), level or ("rounds" if nodes > MANY else "messages"))
    try:
        swarm = Simulation(
            settings,
            plan,
            load or learners_of(settings, nodes),
            nodes=nodes,
            journal=journal,
            faults=faults,
            costs=costs,
            progress=progress,
            jobs=pool,
        )
        swarm.run()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        summary = summary_of(settings, swarm, wall=spent[0], cpu=spent[1])
    finally:
        journal.close()
        pool.close()
    journal.publish()
    if out:
        summary.write(out / "summary.json")
    return summary


def summary_of(settings: Settings, swarm: Simulation, *, wall: float, cpu: float) -> Summary:
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
        wall_seconds=wall,
        cpu_seconds=cpu,
    )


def _file_in(out: Path | None, name: str) -> Path | None:
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {out}: {error.strerror or error}") from error
    return out / name
