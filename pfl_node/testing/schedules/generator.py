"""Fault schedules, drawn from a seed: policy, size, settings and faults of one run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pfl_node.errors import ConfigError
from pfl_node.policies import POLICIES, configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.sim.faults import (
    Crash,
    Cut,
    Delay,
    Fault,
    Join,
    Loss,
    Partition,
    Restart,
    Skew,
    Slow,
    check_faults,
    format_fault,
    node_ids,
)
from pfl_node.testing.contract.small_config import bound, small
from pfl_node.types import PeerId

NODES = (2, 6)
ROUNDS = (3, 8)
FAULTS = (1, 6)  # a crash and its restart are one
SECONDS = 2.5  # of a round, roughly
RULES = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "clipping")
TRIES = 20  # invalid combinations before the small defaults are used
LARGEST = 6  # integer: swarms are small and rounds are few
CHANGED = 0.5  # probability of changing a knob


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Drawn from the seed, which also seeds the run itself."""

    seed: int
    policy: str  # as a user names it
    nodes: int
    rounds: int
    knobs: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted key
    faults: tuple[Fault, ...] = ()
    alert: bool = False  # failures are detected in a few seconds instead of after several rounds


def command(schedule: FaultSchedule, sets: Sequence[str] = (), *, faults: bool = False) -> str:
    """The command that repeats it. `faults`: they are not those of the seed, so the command lists them."""
    words = ["pfl-node", "chaos", "--seed", str(schedule.seed), "--policy", schedule.policy]
    for text in sets:
        words += ["--set", text]
    if faults:
        for fault in schedule.faults:
            words += ["--fault", format_fault(fault)]
        words += [] if schedule.faults else ["--fault", "none"]
    return shlex.join(words)


def draw(seed: int, policies: Sequence[str] = (), knobs: Mapping[str, Any] | None = None) -> FaultSchedule:
    """Consecutive seeds take the policies in turn. Everything but the knobs is independent of the policy."""
    names = policies or tuple(POLICIES)
    policy = names[seed % len(names)]
    size = Random(f"{seed}/size")
    nodes, rounds = size.randint(*NODES), size.randint(*ROUNDS)
    return FaultSchedule(
        seed=seed,
        policy=policy,
        nodes=nodes,
        rounds=rounds,
        knobs=draw_knobs(load_policy(policy), Random(f"{seed}/knobs/{policy}"), knobs or {}),
        settings=_settings(Random(f"{seed}/settings")),
        alert=size.random() < 0.5,
        faults=_faults(Random(f"{seed}/faults"), node_ids(nodes), SECONDS * (rounds + 1)),
    )


def _settings(chance: Random) -> dict[str, Any]:
    """Settings that affect waiting, checkpoints and merging; sometimes the defaults."""
    if chance.random() < 0.1:
        return {}
    drawn: dict[str, Any] = {
        "store.checkpoint_every": chance.choice((1, 1, 2, 3, 10)),
        "round.patience": chance.choice((1.0, 3.0, 10.0)),
        "round.linger": chance.choice((5.0, 30.0, 120.0)),
        "eval.every": chance.choice((1, 1, 2, 4)),
        "train.init": chance.choice(("common", "independent")),
        "wire.base_timeout": chance.choice((2.0, 10.0)),
        "wire.connect_timeout": chance.choice((1.0, 5.0)),
        "serve.per_peer": chance.choice((1, 2)),
        "serve.inbox": chance.choice((1, 3, 64)),
    }
    if chance.random() < 0.4:
        drawn |= {"aggregate.rule": chance.choice(RULES), "aggregate.byzantine": chance.randint(0, 2)}
    if chance.random() < 0.2:
        drawn |= {"guard.gate": chance.choice((0.1, 0.5)), "guard.quarantine": chance.choice((0.0, 5.0, 60.0))}
    if chance.random() < 0.2:
        drawn |= {"guard.outliers": 6.0, "guard.least": 2}
    return drawn


# -- faults ----------------------------------------------------------------------------------------------------


class _Drawing:
    """Draws one fault after the other, each consistent with those before it."""

    def __init__(self, chance: Random, ids: Sequence[PeerId], seconds: float) -> None:
        self.chance = chance
        self.ids = ids
        self.seconds = seconds  # of the run without faults
        self.found: list[Fault] = []
        self._free = dict.fromkeys(ids, 0.0)  # when a node can crash next; inf: it stays down

    def moment(self, begin: float = 0.0) -> float:
        return round(begin + self.chance.uniform(0, max(self.seconds - begin, 1.0)), 2)

    def span(self, longest: float) -> tuple[float, float]:
        """Sometimes from the beginning, never without end, so that the recovery is tested."""
        begin = 0.0 if self.chance.random() < 0.2 else self.moment()
        return begin, round(begin + self.chance.uniform(0.5, longest), 2)

    def some(self) -> frozenset[PeerId]:
        return frozenset(self.chance.sample(self.ids, self.chance.randint(1, len(self.ids) - 1)))

    def crash(self) -> None:
        node = self.chance.choice(self.ids)
        if self._free[node] > self.seconds or not self._leaves_one(node):
            return
        at = self.moment(self._free[node])
        self.found.append(Crash(at, node))
        self._free[node] = float("inf")
        if self.chance.random() < 0.8:
            back = round(at + self.chance.choice((0.2, 2.0, 8.0, 20.0)) * self.chance.uniform(0.5, 1.5), 2)
            self.found.append(Restart(back, node))
            self._free[node] = back + 0.01

    def _leaves_one(self, node: PeerId) -> bool:
        """Another node stays up or restarts."""
        return any(free < float("inf") for other, free in self._free.items() if other != node)

    def join(self) -> None:
        late = {f.node for f in self.found if isinstance(f, Join)}
        node = self.chance.choice(self.ids)
        if self._free[node] == 0.0 and len(late) + 1 < len(self.ids):
            at = self.moment()
            self.found.append(Join(at, node))
            self._free[node] = at + 0.01

    def partition(self) -> None:
        at, until = self.span(40.0)
        one = self.some()
        rest = sorted(set(self.ids) - one)
        two = frozenset(rest[: self.chance.randint(0, len(rest))])
        self.found.append(Partition(at, (one, two) if two else (one,), until))

    def cut(self) -> None:
        at, until = self.span(40.0)
        senders = self.some()
        others = sorted(set(self.ids) - senders)
        receivers = frozenset(self.chance.sample(others, self.chance.randint(1, len(others))))
        self.found.append(Cut(at, senders, receivers, until))

    def loss(self) -> None:
        rate = self.chance.choice((0.05, 0.2, 0.5, 1.0)) * self.chance.uniform(0.5, 1.0)
        self.found.append(Loss(round(rate, 3), *self.span(30.0)))

    def delay(self) -> None:
        seconds = self.chance.choice((0.1, 1.0, 4.0, 15.0)) * self.chance.uniform(0.5, 1.0)
        self.found.append(Delay(round(seconds, 3), *self.span(30.0)))

    def slow(self) -> None:
        factor = self.chance.choice((2.0, 5.0, 20.0))
        self.found.append(Slow(self.chance.choice(self.ids), factor, *self.span(30.0)))

    def skew(self) -> None:
        rate = round(self.chance.choice((0.5, 0.9, 1.1, 2.0, 5.0)) * self.chance.uniform(0.9, 1.1), 3)
        ahead = self.chance.choice((0.0, 0.0, 1.0, 60.0))
        self.found.append(Skew(self.chance.choice(self.ids), rate, ahead, *self.span(60.0)))


def _faults(chance: Random, ids: Sequence[PeerId], seconds: float) -> tuple[Fault, ...]:
    drawing = _Drawing(chance, ids, seconds)
    kinds: tuple[Callable[[], None], ...] = (
        *(drawing.crash, drawing.crash, drawing.crash, drawing.partition, drawing.partition, drawing.cut),
        *(drawing.loss, drawing.loss, drawing.delay, drawing.slow, drawing.skew, drawing.join),
    )
    for _ in range(chance.randint(*FAULTS)):
        chance.choice(kinds)()
    found = tuple(sorted(drawing.found, key=lambda f: f.at))
    check_faults(found, ids)
    return found


def draw_knobs(policy: type[Policy], chance: Random, given: Mapping[str, Any]) -> dict[str, Any]:
    """The small defaults, some of them changed; `given` knobs stay."""
    plain = small(policy, real_time=True)
    for _ in range(TRIES):
        changed = {
            name: _value(field, chance)
            for name, field in policy.Config.model_fields.items()
            if name not in given and chance.random() < CHANGED
        }
        found = {**plain, **{k: v for k, v in changed.items() if v is not ...}, **given}
        try:
            configure(policy, found)
        except ConfigError:
            continue
        return found
    return {**plain, **given}


def _value(field: FieldInfo, chance: Random) -> Any:
    """A value that the field allows; an ellipsis for an unknown type."""
    kind, default = field.annotation, field.default
    if kind is bool:
        return chance.random() < 0.5
    if get_origin(kind) is Literal:
        return chance.choice(get_args(kind))
    if type(None) in get_args(kind):
        if chance.random() < 0.5:
            return None
        kind = next((k for k in get_args(kind) if k in (int, float)), None)
    if kind is int:
        low = int(bound(field, "ge", bound(field, "gt", -1) + 1))
        return chance.randint(low, int(min(max(LARGEST, low), bound(field, "le", bound(field, "lt", 1e9) - 1))))
    if kind is float and type(default) in (int, float, type(None)):
        return _fraction(field, float(default or 1.0), chance)
    return ...


def _fraction(field: FieldInfo, default: float, chance: Random) -> float:
    """Around the default; long times are shortened."""
    seconds = "second" in (field.description or "")
    value = default * (chance.uniform(0.02, 0.3) if seconds and default > 5 else chance.uniform(0.2, 2.0))
    low = max(bound(field, "ge", 0.0), bound(field, "gt", 0.0))
    high = min(bound(field, "le", 1e9), bound(field, "lt", 1e9))
    return round(float(min(max(value, low), high)), 3)
