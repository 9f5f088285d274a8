"""Runs a schedule with toy learners and checks it. A second run must give the same journal."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pfl_node.errors import ConfigError, PolicyFailed, SimulationStuck
from pfl_node.node.ports import Plan
from pfl_node.node.startup import compares_fragments
from pfl_node.plugin import in_a_line, line_of
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import JSON, EventJournal, exact
from pfl_node.sim.faults import kind_of
from pfl_node.sim.simulation import Simulation
from pfl_node.testing.contract.toy_learner import two_clusters
from pfl_node.testing.schedules.generator import FaultSchedule
from pfl_node.testing.schedules.inspector import Inspector
from pfl_node.testing.schedules.rules import Violation, Violations
from pfl_node.types import PeerId

COSTS = Costs(batch=0.5)  # a round takes a second or more, so that faults occur in the middle of one
ALERT = Costs(batch=0.5, detection=(1.0, 3.0), healing=(0.2, 1.0))
CPU_LIMIT = 20.0  # seconds; a schedule takes hundredths
TIME_LIMIT = 20_000.0  # virtual seconds; no schedule takes nearly as long

Row = dict[str, Any]
Listener = Callable[[PeerId | None, str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Trial:
    schedule: FaultSchedule
    broken: tuple[Violation, ...]
    checked: Counter[str]  # how often each rule was checked
    counts: Counter[str]  # messages by outcome, faults by kind, rounds
    journal: tuple[str, ...]
    seconds: float  # virtual

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.journal).encode()).hexdigest()


class MemoryJournal(EventJournal):
    """Passes every row to a listener."""

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


class BoundedSimulation(Simulation):
    """Stops after too many violations or too much virtual time."""

    def __init__(self, violations: Violations, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._violations = violations

    def _over(self) -> bool:
        if self._violations.full:
            raise SimulationStuck("stopped after too many violations")
        if self.world.clock.now > TIME_LIMIT:
            raise SimulationStuck(f"it has not ended after {TIME_LIMIT:g} s: {self._who_waits()}")
        return super()._over()


def run(schedule: FaultSchedule, sets: Sequence[str] = (), *, twice: bool = True) -> Trial:
    """Raises ConfigError for invalid knobs or settings."""
    violations = Violations()
    settings = settings_of(schedule, sets)
    if settings.attack.kind:
        raise ConfigError("attack.kind breaks the rules on purpose: use `pfl-node sim` for attacks")
    inspector = Inspector(violations, _staleness(settings))
    journal = MemoryJournal(inspector.row)
    swarm = _swarm(schedule, settings, violations, journal, inspector.traced)
    inspector.attach(swarm.world)
    inspector.views.plan(swarm)
    _run(swarm, violations)
    if not violations.broken:
        inspector.close()
    if twice and not violations.broken:
        _again(schedule, settings, journal, violations)
    counts = Counter(inspector.mailboxes.counts)
    counts.update(f"fault {kind_of(f)}" for f in schedule.faults)
    counts["rounds"] = inspector.rounds.rounds
    return Trial(
        schedule, tuple(violations.broken), violations.checked, counts, tuple(journal.lines), swarm.world.clock.now
    )


def settings_of(schedule: FaultSchedule, sets: Sequence[str] = ()) -> Settings:
    """A drawn rule that compares whole models is replaced if the run sends fragments."""
    knobs = {f"policy.{name}": value for name, value in schedule.knobs.items()}
    own = {"policy.name": schedule.policy, "rounds": schedule.rounds, "seed": schedule.seed}
    drawn = {**schedule.settings, **knobs, **own}
    settings = load_settings(overrides=drawn, sets=sets)
    if compares_fragments(load_policy(settings.policy.name), settings):
        return load_settings(overrides=drawn | {"aggregate.rule": "median"}, sets=sets)
    return settings


def _staleness(settings: Settings) -> int:
    policy = load_policy(settings.policy.name)
    return int(getattr(settings.round, "staleness", 0)) if getattr(policy, "late", False) else 0


def _swarm(
    schedule: FaultSchedule,
    settings: Settings,
    violations: Violations,
    journal: MemoryJournal,
    wrap: Callable[[type[Policy]], type[Policy]],
) -> BoundedSimulation:
    policy = load_policy(schedule.policy)
    plan = Plan(wrap(policy), configure(policy, settings.policy.options))
    return BoundedSimulation(
        violations,
        settings,
        plan,
        two_clusters,
        nodes=schedule.nodes,
        journal=journal,
        faults=schedule.faults,
        costs=ALERT if schedule.alert else COSTS,
    )


def _run(swarm: BoundedSimulation, violations: Violations) -> None:
    try:
        with cpu_limit(CPU_LIMIT, swarm.world.clock.fail):
            swarm.run()
    except SimulationStuck as stuck:
        if not violations.full:
            violations.add("ends", None, str(stuck))
    except PolicyFailed as failed:
        violations.add("works", None, str(failed))
    except ConfigError:
        raise
    except Exception as error:
        where = line_of(error) or _last_line(error)
        violations.add("works", None, f"{in_a_line(error)}{where}")
    else:
        violations.checked["ends"] += 1
        violations.checked["works"] += 1


def _again(schedule: FaultSchedule, settings: Settings, journal: MemoryJournal, violations: Violations) -> None:
    """Without an inspector, which must not affect the run."""
    again, second = Violations(), MemoryJournal(None)
    _run(_swarm(schedule, settings, again, second, lambda cls: cls), again)
    pairs = zip(journal.lines, second.lines, strict=False)
    line = next((f"{a} / {b}" for a, b in pairs if a != b), f"{len(journal.lines)} / {len(second.lines)} lines")
    violations.check("repeats", journal.lines == second.lines, None, f"two runs differ: {line}")


def _last_line(error: Exception) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace else ""


@contextmanager
def cpu_limit(seconds: float, fail: Callable[[BaseException], None]) -> Iterator[None]:
    """Makes the event loop `fail` with SimulationStuck after so much CPU time, and raises it in code that does not
    return to the loop within a tenth more. Raised at once, it could hit the loop between two callbacks, and the
    task that was about to run would never end. Works in the main thread, on systems with a virtual timer."""
    timer = getattr(signal, "ITIMER_VIRTUAL", None)
    if timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    error: SimulationStuck | None = None

    def expired(_: int, frame: FrameType | None) -> None:
        nonlocal error
        if error:
            raise error
        where = f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})" if frame else ""
        error = SimulationStuck(f"it has computed for {seconds:g} s without a step{where}")
        fail(error)

    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(timer, seconds, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(signal.SIGVTALRM, before)
