"""Checks the rounds of every node: they increase, and a restart returns to the last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.testing.schedules.rules import Violations
from pfl_node.types import PeerId


@dataclass
class Incarnation:
    """A node between a start and its crash or end."""

    begin: int = 0  # the round of the checkpoint it started from
    reported: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # for each of them, the round to resume in


class RoundCheck:
    def __init__(self, violations: Violations) -> None:
        self.checkpoint_every = 1
        self.last = 0.0  # when a node changed its round last
        self.rounds = 0  # reported by all nodes
        self._violations = violations
        self._check = violations.check
        self._lives: dict[PeerId, Incarnation] = {}
        self._round: dict[PeerId, int] = {}
        self._reporting: dict[PeerId, tuple[int, Model]] = {}  # round and model of the last Report
        self._models: dict[tuple[PeerId, int], list[Model]] = {}  # of a Report, by the round to resume in

    def step(self, policy: Policy) -> None:
        if policy.round != self._round.get(policy.me):
            self._round[policy.me], self.last = policy.round, self._violations.now()

    def reports(self, policy: Policy, round: int) -> None:
        life = self._life(policy.me)
        before = life.reported[-1] if life.reported else None
        text = f"reports round {round} after {before}"
        self._check("rounds", before is None or round > before, policy.me, text)
        last = policy.rounds or 0  # a final exchange is reported as one more round
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
        """The model must be that of a Report after which the node would resume in this round."""
        models = self._models.get((policy.me, policy.round), [])
        same = any((policy.model.vector == m.vector).all() for m in models)
        self._check("state", same, policy.me, f"resumes in round {policy.round} with a model it never had there")

    def _restarted(self, node: PeerId, round: int) -> None:
        life = self._life(node)
        sure = life.done[-self.checkpoint_every] if len(life.done) >= self.checkpoint_every else life.begin
        every = f"a checkpoint every {self.checkpoint_every}"
        text = f"resumes in round {round}; it had reported {life.reported}, with {every}"
        self._check("rounds", round >= sure, node, text)
        self._lives[node] = Incarnation(begin=round)

    def _life(self, node: PeerId) -> Incarnation:
        return self._lives.setdefault(node, Incarnation())
