"""Runs a schedule with toy learners under the eyes of an inspector. Twice, as the second time must be the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_node.errors import ConfigError, SimulationStuck
from pfl_node.plugin import in_a_line, line_of
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import JSON, EventJournal, exact
from pfl_node.sim.faults import kind_of
from pfl_node.sim.simulation import Simulation
from pfl_node.sim.snapshot import Plan
from pfl_node.testing.contract.toy_learner import LAYOUT, two_clusters
from pfl_node.testing.schedules.cpu_limit import at_most
from pfl_node.testing.schedules.inspector import Inspector
from pfl_node.testing.schedules.rules import Violation, Violations
from pfl_node.testing.schedules.schedule import Schedule
from pfl_node.testing.schedules.traced_policy import witnessed
from pfl_node.types import PeerId

COSTS = Costs(batch=0.5)  # a round takes a second or more, so that faults hit in the middle of it
ALERT = Costs(batch=0.5, detection=(1.0, 3.0), healing=(0.2, 1.0))
COMPUTING = 20.0  # seconds of CPU; a schedule takes hundredths
LONGEST = 20_000.0  # virtual seconds; nothing that is drawn takes nearly as long

Row = dict[str, Any]
Listener = Callable[[PeerId | None, str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Trial:
    """A schedule after its run."""

    schedule: Schedule
    broken: tuple[Violation, ...]
    checked: Counter[str]  # how often each rule was looked at
    counts: Counter[str]  # messages by what became of them, faults by kind, rounds
    journal: tuple[str, ...]
    seconds: float  # virtual

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.journal).encode()).hexdigest()


class Pages(EventJournal):
    """A journal in memory; somebody listens to every line."""

    def __init__(self, listener: Listener | None) -> None:
        super().__init__(None)
        self.messages = True
        self.lines: list[str] = []
        self._listener = listener

    def write(self, time: float, node: PeerId | None, event: str, **data: Any) -> None:
        own = {"time": round(time, 6), "node": node, "event": event}
        self.lines.append(JSON.encode(own | exact(data) | own))
        if self._listener:
            self._listener(node, event, data)


class Watched(Simulation):
    """A swarm that is given up when enough is known or it does not end."""

    def __init__(self, findings: Violations, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._findings = findings

    def _step(self) -> bool:
        if self._findings.full:
            raise SimulationStuck("too much is wrong to go on")
        if self.world.clock.now > LONGEST:
            raise SimulationStuck(f"it is not over after {LONGEST:g} s: {self._who_waits()}")
        return super()._step()


def run(schedule: Schedule, sets: Sequence[str] = (), *, twice: bool = True) -> Trial:
    """Raises ConfigError for knobs or settings that cannot be."""
    findings = Violations()
    settings = settings_of(schedule, sets)
    if settings.attack.kind:
        raise ConfigError("attack.kind breaks rules on purpose: use `pfl-node sim` for attacks")
    inspector = Inspector(findings, _staleness(settings))
    pages = Pages(inspector.row)
    swarm = _swarm(schedule, settings, findings, pages, lambda cls: witnessed(cls, inspector, LAYOUT))
    inspector.attend(swarm.world)
    inspector.sight.plan(swarm)
    _run(swarm, findings)
    if not findings.broken:
        inspector.close()
    if twice and not findings.broken:
        _again(schedule, settings, pages, findings, swarm.world.clock.now)
    counts = Counter(inspector.ledger.counts)
    counts.update(f"fault {kind_of(f)}" for f in schedule.faults)
    counts["rounds"] = inspector.progress.rounds
    return Trial(
        schedule, tuple(findings.broken), findings.checked, counts, tuple(pages.lines), swarm.world.clock.now
    )


def settings_of(schedule: Schedule, sets: Sequence[str] = ()) -> Settings:
    """What the seed drew, below what the user sets."""
    knobs = {f"policy.{name}": value for name, value in schedule.knobs.items()}
    own = {"policy.name": schedule.policy, "rounds": schedule.rounds, "seed": schedule.seed}
    return load_settings(overrides={**schedule.told, **knobs, **own}, sets=sets)


def _staleness(settings: Settings) -> int:
    policy = load_policy(settings.policy.name)
    return int(getattr(settings.round, "staleness", 0)) if getattr(policy, "late", False) else 0


def _swarm(
    schedule: Schedule,
    settings: Settings,
    findings: Violations,
    pages: Pages,
    dress: Callable[[type[Policy]], type[Policy]],
) -> Watched:
    policy = load_policy(schedule.policy)
    plan = Plan(dress(policy), configure(policy, settings.policy.options))
    return Watched(
        findings,
        settings,
        plan,
        two_clusters,
        nodes=schedule.nodes,
        journal=pages,
        faults=schedule.faults,
        costs=ALERT if schedule.alert else COSTS,
    )


def _run(swarm: Watched, findings: Violations) -> None:
    try:
        with at_most(COMPUTING):
            swarm.run()
    except SimulationStuck as stuck:
        if not findings.full:
            findings.broke("ends", swarm.world.clock.now, None, str(stuck))
    except ConfigError:
        raise
    except Exception as error:
        where = line_of(error) or _last_line(error)
        findings.broke("works", swarm.world.clock.now, None, f"{in_a_line(error)}{where}")
    else:
        findings.checked["ends"] += 1
        findings.checked["works"] += 1


def _again(schedule: Schedule, settings: Settings, pages: Pages, findings: Violations, now: float) -> None:
    """Without an inspector, whose looking must change nothing."""
    again, second = Violations(), Pages(None)
    _run(_swarm(schedule, settings, again, second, lambda cls: cls), again)
    pairs = zip(pages.lines, second.lines, strict=False)
    line = next((f"{a} / {b}" for a, b in pairs if a != b), f"{len(pages.lines)} / {len(second.lines)} lines")
    findings.check("repeats", pages.lines == second.lines, now, None, f"two runs differ: {line}")


def _last_line(error: Exception) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace else ""
