"""The rounds of every node: they go forward, and a restart goes back to the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.testing.schedules.rules import Violations
from pfl_node.types import PeerId


@dataclass
class Life:
    """One node from a start to its crash or its end."""

    begin: int = 0  # the round in which it began, as far as its checkpoint says
    reported: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # for each of them the round it would go on after


class RoundCheck:
    """Fed with the journal and with what policies report."""

    def __init__(self, findings: Violations, now: Callable[[], float]) -> None:
        self.checkpoint_every = 1
        self.last = 0.0  # when somebody was seen in another round than before
        self.rounds = 0  # reported in all
        self._findings = findings
        self._now = now
        self._lives: dict[PeerId, Life] = {}
        self._seen: dict[PeerId, int] = {}
        self._reporting: dict[
            PeerId, tuple[int, Model]
        ] = {}  # the last Report: the round it was in, and the model
        self._models: dict[tuple[PeerId, int], list[Model]] = {}  # at a Report, by the round it goes on in

    def seen(self, policy: Policy) -> None:
        if policy.round != self._seen.get(policy.me):
            self._seen[policy.me], self.last = policy.round, self._now()

    def reports(self, policy: Policy, round: int) -> None:
        life = self._life(policy.me)
        before = life.reported[-1] if life.reported else None
        told = f"reports round {round} after {before}"
        self._check("rounds", before is None or round > before, policy.me, told)
        last = policy.rounds or 0  # one more than there are: the exchange of all in the end
        self._check("rounds", 0 <= round <= last, policy.me, f"reports round {round} of {policy.rounds}")
        life.reported.append(round)
        self.rounds += 1
        self._reporting[policy.me] = (policy.round, policy.model)

    def row(self, node: PeerId, event: str, row: Mapping[str, Any]) -> None:
        match event:
            case "round":
                round, model = self._reporting[node]
                self._life(node).done.append(round + 1)
                self._models.setdefault((node, round + 1), []).append(model)
            case "catching_up":
                self._life(node).done[-1] = ahead = row["swarm"]
                self._models.setdefault((node, ahead), []).append(self._reporting[node][1])
            case "restarted":
                self._restarted(node, row["round"])

    def restored(self, policy: Policy) -> None:
        """It has the model of a Report after which it would have gone on in this round."""
        models = self._models.get((policy.me, policy.round), [])
        same = any((policy.model.vector == m.vector).all() for m in models)
        told = f"goes on in round {policy.round} with a model that it did not have there"
        self._check("state", same, policy.me, told)

    def _restarted(self, node: PeerId, round: int) -> None:
        life = self._life(node)
        sure = life.done[-self.checkpoint_every] if len(life.done) >= self.checkpoint_every else life.begin
        every = f"a checkpoint every {self.checkpoint_every}"
        told = f"goes on in round {round}; it had done {life.reported}, with {every}"
        self._check("rounds", round >= sure, node, told)
        self._lives[node] = Life(begin=round)

    def _life(self, node: PeerId) -> Life:
        return self._lives.setdefault(node, Life())

    def _check(self, rule: str, holds: bool, node: PeerId, text: str) -> None:
        self._findings.check(rule, holds, self._now(), node, text)
