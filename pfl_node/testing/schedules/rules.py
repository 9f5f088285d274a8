"""The rules that every run must keep, whatever its faults, and their violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pfl_node.types import PeerId

MOST = 10  # violations kept of a run; the first ones matter most

RULES = {
    "ends": "a run ends: no node waits for something that cannot happen",
    "works": "no policy raises, whatever answers it gets",
    "finishes": "a node that is up at the end has done its rounds",
    "fate": "every message is accepted, refused or lost, exactly once",
    "acknowledged": "an acknowledged model was accepted",
    "delivered": "an accepted model reaches the policy once, intact and in order, or there is a reason why not",
    "asked": "answers come from the peers that were asked and hold what these published",
    "model": "models are finite and have the layout of their node",
    "average": "an average lies between the averaged models",
    "rounds": "round numbers increase; a restart goes back by less than checkpoint_every rounds",
    "state": "a restarted node has the model of its checkpoint",
    "deadline": "no node waits beyond its deadline, by its own clock",
    "clock": "the clock of a node never goes back",
    "handlers": "one handler runs at a time, and none while the node is down",
    "views": "when nothing has changed for a while, every node knows which peers are alive",
    "bounds": "the models waiting at a node are bounded and counted",
    "repeats": "the same seed gives the same journal, byte for byte",
}


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    time: float  # virtual seconds
    node: PeerId | None
    text: str

    def __str__(self) -> str:
        where = f"{self.node}, " if self.node else ""
        return f"{self.rule}: {where}{self.time:.3f} s: {self.text}"


class Violations:
    def __init__(self) -> None:
        self.now: Callable[[], float] = lambda: 0.0  # virtual time
        self.broken: list[Violation] = []
        self.checked: Counter[str] = Counter()  # how often each rule was checked

    def check(self, rule: str, holds: bool, node: PeerId | None, text: str) -> bool:
        self.checked[rule] += 1
        if not holds:
            self.add(rule, node, text)
        return holds

    def add(self, rule: str, node: PeerId | None, text: str) -> None:
        if len(self.broken) < MOST:
            self.broken.append(Violation(rule, self.now(), node, " ".join(text.split())))

    @property
    def full(self) -> bool:
        return len(self.broken) >= MOST
