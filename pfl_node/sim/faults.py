"""The faults of a simulation as frozen events with a time, their text form, and their effect at a time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from pfl_node.errors import ConfigError, nearest
from pfl_node.types import PeerId


@dataclass(frozen=True, slots=True)
class Crash:
    """The node stops without leaving and loses what it had not written to disk."""

    at: float
    node: PeerId


@dataclass(frozen=True, slots=True)
class Restart:
    """A crashed node starts again from its last checkpoint."""

    at: float
    node: PeerId


@dataclass(frozen=True, slots=True)
class Join:
    """The node starts now instead of at the beginning."""

    at: float
    node: PeerId


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes in different groups cannot reach each other. Nodes in no group form one more group."""

    at: float
    groups: tuple[frozenset[PeerId], ...]
    until: float = inf

    def blocks(self, a: PeerId, b: PeerId) -> bool:
        return self._side(a) != self._side(b)

    def _side(self, node: PeerId) -> int:
        return next((i for i, group in enumerate(self.groups) if node in group), -1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Messages from the senders to the receivers are lost; the other direction works."""

    at: float
    senders: frozenset[PeerId]
    receivers: frozenset[PeerId]
    until: float = inf

    def blocks(self, a: PeerId, b: PeerId) -> bool:
        return a in self.senders and b in self.receivers


@dataclass(frozen=True, slots=True)
class Loss:
    """Each message is lost with this probability."""

    rate: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True, slots=True)
class Delay:
    """Additional latency of every message."""

    seconds: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True, slots=True)
class Slow:
    """The node's jobs take `factor` times as long."""

    node: PeerId
    factor: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True, slots=True)
class Skew:
    """The node's clock runs `rate` times as fast and jumps forward by `ahead` seconds."""

    node: PeerId
    rate: float = 1.0
    ahead: float = 0.0
    at: float = 0.0
    until: float = inf


Fault = Crash | Restart | Join | Partition | Cut | Loss | Delay | Slow | Skew

FORMS = {
    "crash": "crash:n003@12.5",
    "restart": "restart:n003@20",
    "join": "join:n009@30",
    "partition": "partition:n000-n004|rest@10-40",
    "cut": "cut:n000>rest@10-40",
    "loss": "loss:0.02 or loss:0.02@10-40",
    "delay": "delay:0.1 or delay:0.1@10-40",
    "slow": "slow:n003x4 or slow:n003x4@10-40",
    "skew": "skew:n003x1.5 or skew:n003x1.5+30@10-40",
}

SPAN = "(@(?P<at>[^-]+)(-(?P<until>.+))?)?"
MOMENT = "(?P<node>[^@]+)@(?P<at>.+)"
PATTERNS: dict[str, tuple[Callable[..., Fault], str]] = {
    "crash": (Crash, MOMENT),
    "restart": (Restart, MOMENT),
    "join": (Join, MOMENT),
    "loss": (Loss, "(?P<rate>[^@]+)" + SPAN),
    "delay": (Delay, "(?P<seconds>[^@]+)" + SPAN),
    "slow": (Slow, "(?P<node>[^x@]+)x(?P<factor>[^@]+)" + SPAN),
    "skew": (Skew, r"(?P<node>[^x+@]+)(?=[x+])(x(?P<rate>[^+@]+))?(\+(?P<ahead>[^@]+))?" + SPAN),
}  # the text after the colon


def node_ids(nodes: int) -> tuple[PeerId, ...]:
    """n000, n001, …, padded so that text order is numeric order."""
    width = max(3, len(str(nodes - 1)))
    return tuple(PeerId(f"n{i:0{width}}") for i in range(nodes))


def parse_faults(texts: Iterable[str], ids: Sequence[PeerId]) -> tuple[Fault, ...]:
    """Parse faults and check them against the nodes of the run."""
    faults = tuple(_parse(text, ids) for text in texts)
    check_faults(faults, ids)
    return faults


def check_faults(faults: Iterable[Fault], ids: Sequence[PeerId]) -> None:
    """Raise ConfigError if a fault is impossible."""
    up: dict[PeerId, bool] = {}
    joins: set[PeerId] = set()
    for fault in sorted(faults, key=lambda f: f.at):
        _check_numbers(fault)
        for node in _nodes_of(fault):
            if node not in ids:
                raise ConfigError(f"{kind_of(fault)}: there is no node {node!r}; {nearest(node, ids)}")
        match fault:
            case Join(node=node):
                if node in joins or node in up:
                    raise ConfigError(f"join: {node} can join only once, and before any other fault of this node")
                joins.add(node)
            case Crash(node=node):
                if up.get(node) is False:
                    raise ConfigError(f"crash: {node} is already down at {fault.at:g}; restart it first")
                up[node] = False
            case Restart(node=node):
                if up.get(node) is not False:
                    raise ConfigError(f"restart: {node} is not down at {fault.at:g}; crash it first")
                up[node] = True


def kind_of(fault: Fault) -> str:
    return type(fault).__name__.lower()


def _check_numbers(fault: Fault) -> None:
    name = kind_of(fault)
    if not 0 <= fault.at < inf:
        raise ConfigError(f"{name}: the time is {fault.at:g} s; it must be zero or more")
    match fault:
        case Loss(rate=rate) if not 0 <= rate <= 1:
            raise ConfigError(f"loss: the rate is {rate:g}; it must be between 0 and 1")
        case Delay(seconds=seconds) if not 0 <= seconds < inf:
            raise ConfigError(f"delay: the delay is {seconds:g} s; it must be zero or more")
        case Slow(factor=factor) if not 0 < factor < inf:
            raise ConfigError(f"slow: the factor is {factor:g}; it must be above zero")
        case Skew(rate=rate) if not 0 < rate < inf:
            raise ConfigError(f"skew: the rate is {rate:g}; it must be above zero")
        case Skew(ahead=ahead) if not 0 <= ahead < inf:
            raise ConfigError(f"skew: the jump is {ahead:g} s; it must be zero or more")
    if not isinstance(fault, Crash | Restart | Join) and not fault.until > fault.at:
        raise ConfigError(f"{name}: the end, {fault.until:g} s, is not after the start, {fault.at:g} s")


def _nodes_of(fault: Fault) -> list[PeerId]:
    match fault:
        case Crash(node=node) | Restart(node=node) | Join(node=node) | Slow(node=node) | Skew(node=node):
            return [node]
        case Partition(groups=groups):
            return sorted(node for group in groups for node in group)
        case Cut(senders=senders, receivers=receivers):
            return sorted(senders | receivers)
    return []


# -- text ------------------------------------------------------------------------------------------------------


def _parse(text: str, ids: Sequence[PeerId]) -> Fault:
    kind, colon, rest = text.partition(":")
    if kind not in FORMS or not colon:
        raise ConfigError(f"fault {text!r}: unknown kind {kind!r}; {nearest(kind, FORMS)}")
    try:
        return _parse_as(kind, rest, ids)
    except ValueError:
        raise ConfigError(f"cannot parse fault {text!r}; write it like {FORMS[kind]}") from None


def _parse_as(kind: str, text: str, ids: Sequence[PeerId]) -> Fault:
    if kind in ("partition", "cut"):
        what, _, when = text.partition("@")
        return _partition(what, when, ids) if kind == "partition" else _cut(what, when, ids)
    cls, pattern = PATTERNS[kind]
    found = re.fullmatch(pattern, text)
    if not found:
        raise ValueError(text)
    fields = {name: value for name, value in found.groupdict().items() if value is not None}
    return cls(**{name: PeerId(value) if name == "node" else float(value) for name, value in fields.items()})


def _span(when: str) -> tuple[float, float]:
    start, dash, end = when.partition("-")
    return (float(start) if when else 0.0), (float(end) if dash else inf)


def _cut(what: str, when: str, ids: Sequence[PeerId]) -> Cut:
    start, until = _span(when)
    names = what.split(">")
    if not when or len(names) != 2 or not all(names) or names == ["rest", "rest"]:
        raise ValueError(what)
    ends = [frozenset[PeerId]() if name == "rest" else _group(name, ids) for name in names]
    senders, receivers = (end or frozenset(ids) - other for end, other in zip(ends, reversed(ends), strict=True))
    if senders & receivers:
        raise ConfigError(f"cut:{what}: a node is on both sides")
    return Cut(start, senders, receivers, until)


def _partition(what: str, when: str, ids: Sequence[PeerId]) -> Partition:
    start, until = _span(when)
    names = [name for name in what.split("|") if name != "rest"]
    if not when or not names or not all(names):
        raise ValueError(what)
    groups = tuple(_group(name, ids) for name in names)
    if sum(map(len, groups)) != len(frozenset[PeerId]().union(*groups)):
        raise ConfigError(f"partition:{what}: a node is in two groups")
    return Partition(start, groups, until)


def _group(text: str, ids: Sequence[PeerId]) -> frozenset[PeerId]:
    """n000,n003-n005"""
    found: set[PeerId] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found |= {i for i in ids if first <= i <= last} if dash else {PeerId(first)}
        if dash and not (first in ids and last in ids and first <= last):
            raise ConfigError(f"{part!r} is not a range of nodes; there are {ids[0]} to {ids[-1]}")
    return frozenset(found)


def format_fault(fault: Fault) -> str:
    """The text form, from which `parse_faults` returns an equal fault."""
    match fault:
        case Crash() | Restart() | Join():
            return f"{kind_of(fault)}:{fault.node}@{_number(fault.at)}"
        case Partition(groups=groups):
            what = "|".join(map(_names, groups)) + ("|rest" if len(groups) == 1 else "")
        case Cut(senders=senders, receivers=receivers):
            what = f"{_names(senders)}>{_names(receivers)}"
        case Loss(rate=rate):
            what = _number(rate)
        case Delay(seconds=seconds):
            what = _number(seconds)
        case Slow(node=node, factor=factor):
            what = f"{node}x{_number(factor)}"
        case Skew(node=node, rate=rate, ahead=ahead):
            what = f"{node}x{_number(rate)}" + (f"+{_number(ahead)}" if ahead else "")
    return f"{kind_of(fault)}:{what}@{_number(fault.at)}" + (
        f"-{_number(fault.until)}" if fault.until < inf else ""
    )


def _names(group: Iterable[PeerId]) -> str:
    return ",".join(sorted(group))


def _number(value: float) -> str:
    return f"{value:.12g}"


class Conditions:
    """All faults with a duration, grouped by kind."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        faults = list(faults)
        self.partitions = [f for f in faults if isinstance(f, Partition)]
        self.cuts = [f for f in faults if isinstance(f, Cut)]
        self._blocks: list[Partition | Cut] = [*self.partitions, *self.cuts]
        self._losses = [f for f in faults if isinstance(f, Loss)]
        self._delays = [f for f in faults if isinstance(f, Delay)]
        self._slow = [f for f in faults if isinstance(f, Slow)]
        self._skews = [f for f in faults if isinstance(f, Skew)]

    def blocked(self, a: PeerId, b: PeerId, now: float) -> bool:
        """Are messages from a to b blocked?"""
        return any(f.at <= now < f.until and f.blocks(a, b) for f in self._blocks)

    def loses(self, now: float, chance: Callable[[int], float]) -> bool:
        """Is a message sent now lost? `chance(n)` is a uniform draw for the n-th Loss."""
        return any(chance(n) < f.rate for n, f in enumerate(self._losses) if f.at <= now < f.until)

    def delay(self, now: float) -> float:
        """Additional latency of a message, in seconds."""
        return sum(f.seconds for f in self._delays if f.at <= now < f.until)

    @property
    def max_delay(self) -> float:
        """Upper bound of `delay`."""
        return sum(f.seconds for f in self._delays)

    def slowness(self, node: PeerId, now: float) -> float:
        """Factor on the duration of a job that starts now."""
        factor = 1.0
        for f in self._slow:
            if f.node == node and f.at <= now < f.until:
                factor *= f.factor
        return factor

    def skews(self, node: PeerId) -> list[Skew]:
        return [f for f in self._skews if f.node == node]
