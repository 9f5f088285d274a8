"""What must hold in every run, whatever goes wrong in it, and what did not. Knows no simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pfl_node.types import PeerId

MOST = 10  # findings of a run that are kept; the first tells most

RULES = {
    "ends": "a run ends: nobody waits for what cannot come",
    "works": "no policy fails, whatever answers it gets",
    "finishes": "a node that is up in the end has done its rounds",
    "fate": "whatever is sent is taken, refused or lost, and only once",
    "acknowledged": "what was acknowledged was taken",
    "delivered": "what was taken gets to the policy once, whole and in order, or it is known why not",
    "asked": "answers are of those who were asked, and of what they told",
    "model": "models are finite and of the layout of their node",
    "average": "an average lies between the models it is of",
    "rounds": "rounds go forward; a restart goes back to the last checkpoint, and by less than checkpoint_every",
    "state": "a restarted node has the model of its checkpoint",
    "deadline": "nobody waits for longer than its deadline, by its own clock",
    "clock": "the clock of a node goes forward",
    "handlers": "one handler runs at a time, and none when the node is down",
    "views": "when nothing has changed for a while, everybody knows who is there",
    "bounds": "what waits at a node is bounded and counted",
    "repeats": "the same seed gives the same journal, byte for byte",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    rule: str
    time: float  # virtual seconds
    node: PeerId | None
    text: str

    def __str__(self) -> str:
        where = f"{self.node}, " if self.node else ""
        return f"{self.rule}: {where}{self.time:.3f} s: {self.text}"


class Violations:
    """Filled while a run is watched."""

    def __init__(self) -> None:
        self.broken: list[Violation] = []
        self.checked: Counter[str] = Counter()  # how often each rule was looked at

    def check(self, rule: str, holds: bool, time: float, node: PeerId | None, text: str) -> bool:
        self.checked[rule] += 1
        if not holds:
            self.broke(rule, time, node, text)
        return holds

    def broke(self, rule: str, time: float, node: PeerId | None, text: str) -> None:
        if len(self.broken) < MOST:
            self.broken.append(Violation(rule, time, node, " ".join(text.split())))

    @property
    def full(self) -> bool:
        return len(self.broken) >= MOST
