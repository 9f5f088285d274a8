"""Answers a policy by hand, as badly as the border allows: nobody there, nobody answering, others every time,
answers that are valid and mean nothing. No clock, no network; chance is handed in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from random import Random
from typing import Any, TypeVar

import numpy as np

from pfl_node import aggregate, predictions
from pfl_node.model import Layout, Model
from pfl_node.policies.base import Policy
from pfl_node.settings import AggregateSettings
from pfl_node.sim.event_journal import exact
from pfl_node.steps import (
    Ask,
    Average,
    Distill,
    Fetch,
    Flow,
    Fresh,
    Gather,
    Linger,
    Peers,
    Predict,
    Publish,
    Receive,
    Record,
    Report,
    Score,
    Send,
    Sleep,
    Step,
    Train,
    advance,
)
from pfl_node.testing.contract.harness import ROUNDS, STOPPED, Broken
from pfl_node.testing.contract.toy_learner import AUXILIARY, LAYOUT, ToyLearner
from pfl_node.types import Eval, Offer, Part, PeerId

T = TypeVar("T")
ME = PeerId("me")
CROWD = tuple(PeerId(f"p{i:02}") for i in range(30))
STEPS = 20_000  # after which a policy is taken to go round in circles
RULES = tuple(AggregateSettings(rule=rule) for rule in ("mean", "median", "multi_krum", "clipping"))
NUMBERS = (0.0, 0.5, 0.5, 1.0, -1e6, 1e6)
TAGS, SIZES = (0, 0, 1, 7, 2**32 - 1), (0, 1, 10, 2**63)
LOSSES, ACCURACIES = (nan, inf, 0.0, -1.0, 0.5, 1e30), (nan, 0.0, 0.5, 1.0)


class Hostile:
    """`there`: how likely a peer is in an answer of Peers; `answers`: how likely it answers anything else."""

    def __init__(self, policy: Policy, rng: Random, *, there: float, answers: float) -> None:
        self.policy = policy
        self.rng = rng
        self.there = there
        self.answers = answers
        self.calm_after: int | None = None  # from this round on everybody is there, nobody answers, chance is over
        self.learner = ToyLearner(point=1.0, cluster=0)
        self.reports: list[Report] = []
        self.snapshots: list[dict[str, Any]] = []
        self.stopped = False  # early, as its journal says
        self._now = 0.0
        self._calm = False
        self._seen: list[tuple[Model, bytes]] = []  # every model that the policy had in its hands, as it was then

    def run(self) -> None:
        """`main` to its end, and handlers beside it at any moment."""
        flows: dict[str, tuple[Flow, Any]] = {"main": (self.policy.main(), None)}
        for _ in range(STEPS):
            if self.policy.pushes() and "handler" not in flows and self.rng.random() < 0.5:
                flows["handler"] = (self._handler(), None)
            name = self.rng.choice(sorted(flows))
            flow, answer = flows.pop(name)
            step = advance(flow, answer)
            if step is not None:
                flows[name] = (flow, self.answer(step))
            elif name == "main":
                for other, _ in flows.values():
                    other.close()
                return
        raise Broken(f"no end after {STEPS} steps, in round {self.policy.round}")

    @property
    def reported(self) -> list[int]:
        return [report.round for report in self.reports]

    def check(self) -> None:
        """After the run."""
        if self.policy.more or any(b <= a for a, b in pairwise(self.reported)):
            raise Broken(f"it ended in round {self.policy.round} of {ROUNDS} and reported {self.reported}")
        if not self.policy.model.is_finite():
            raise Broken("its model is not finite in the end")
        if any(model.vector.tobytes() != was for model, was in self._seen):
            raise Broken("it changed the numbers of a model, which may be somebody else's too")

    def _handler(self) -> Flow:
        silence = self.policy.quiet_after is not None and self.rng.random() < 0.5
        if silence or not (came := self._offers([self.rng.choice(CROWD)], self._parts(), None)):
            return self.policy.on_quiet()
        return self.policy.on_model(came[0])

    def fall_silent(self) -> None:
        self.there, self.answers, self._calm = 1.0, 0.0, True

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, step: Step[Any]) -> Any:
        for model in _models_in(step):
            self._see(model)
        found = self._tell(step)
        for model in _models_in(found):
            self._see(model)
        return found

    def _tell(self, step: Step[Any]) -> Any:
        match step:
            case Sleep(seconds):
                if not (isfinite(seconds) and seconds >= 0):
                    raise Broken(f"it slept for {seconds} s")
                self._now += seconds
                return self._now
            case Peers():
                return tuple(self._some(CROWD, self.there))
            case Send():
                if step.model.layout.part not in self.policy.takes:
                    raise Broken(f"it sent {step.model.layout.part}, but takes {self.policy.takes}: all refuse it")
                return tuple(self._some(step.to))
            case Gather():
                strangers = self._some(CROWD, 0.1) if step.others else []
                return self._offers([*step.peers, *strangers], self._parts(), step.round)
            case Receive():
                return self._offers(self._some(CROWD)[: step.n], self._parts(), None)
            case Fetch():
                return self._offers(step.peers, (step.part,), self.rng.randrange(ROUNDS))
            case Ask():
                return {p: self._eval() for p in self._some(step.peers)}
            case Linger():
                return step.seconds is None or self.rng.random() < 0.2
            case Record() | Publish() | Report():
                return self._note(step)
        return self._learn(step)

    def _learn(self, step: Step[Any]) -> Any:
        learner, seed = self.learner, self.rng.randrange(1 << 30)
        match step:
            case Fresh():
                return learner.fresh(step.seed, step.part)
            case Train():  # one that diverged is thrown away
                return step.model if self._rarely() else learner.train(step.model, seed=seed)
            case Score() if self._calm:
                return learner.score(step.models)
            case Score():
                return tuple(self._eval() for _ in step.models)
            case Average():
                rule = RULES[0] if self._calm else self.rng.choice(RULES)
                return aggregate.combine(rule, step.mine, step.others, step.weights, step.own)
            case Predict():
                return learner.predict(step.model, seed=seed, **step.options)
            case Distill():
                return learner.distill(step.model, teacher=step.teacher, seed=seed)
        raise Broken(f"it asked for {step!r}, which nobody knows")

    def _note(self, step: Record | Publish | Report) -> None:
        if not isinstance(step, Publish):
            json.dumps(exact(step.data))
        if isinstance(step, Record):
            self.stopped |= step.event == STOPPED
        if isinstance(step, Report):
            if step.round != self.policy.round:
                raise Broken(
                    f"in round {self.policy.round} it reported round {step.round}: a restart would go wrong"
                )
            self.reports.append(step)
            self.snapshots.append(self.policy.snapshot())
            if step.round == self.calm_after:
                self.fall_silent()

    # -- chance --------------------------------------------------------------------------------------------

    def _some(self, peers: Iterable[PeerId], share: float | None = None) -> list[PeerId]:
        share = self.answers if share is None else share
        return [p for p in dict.fromkeys(peers) if self.rng.random() < share]

    def _rarely(self) -> bool:
        return not self._calm and self.rng.random() < 0.2

    def _eval(self) -> Eval:
        return Eval(self.rng.choice(LOSSES), self.rng.choice(ACCURACIES), self.rng.choice(SIZES))

    def _parts(self) -> tuple[Part, ...]:
        return self.policy.takes

    def _offers(self, peers: Sequence[PeerId], parts: Sequence[Part], round: int | None) -> tuple[Offer, ...]:
        return tuple(self._offer(p, self.rng.choice(parts), round) for p in self._some(peers) if parts)

    def _offer(self, sender: PeerId, part: Part, round: int | None) -> Offer:
        model = self._said() if part == "predictions" else self._numbers(LAYOUT.of(part))
        notes = {str(self.rng.choice(CROWD)): self.rng.choice((0.0, -1e300, 1.0, 1e300)) for _ in range(3)}
        tag, samples = self.rng.choice(TAGS), self.rng.choice(SIZES)
        return Offer(sender, model, round, tag, samples, notes)

    def _numbers(self, layout: Layout) -> Model:
        return Model(layout, np.array([self.rng.choice(NUMBERS) for _ in range(layout.size)], np.float32))

    def _said(self) -> Model:
        """Predictions: no probabilities, or such that everybody is sure and all or nothing is strange."""
        layout = self.learner.predictions
        if self.rng.random() < 0.5:
            return self._numbers(layout)
        outputs, classes = np.zeros((n := len(AUXILIARY), 2)), [self.rng.randrange(2) for _ in range(n)]
        outputs[range(n), classes] = 1
        strange, counts = self.rng.choice((0.0, 1e-30, 1e30)), self.rng.choice((0, 1, 1e9))
        return predictions.pack(layout, outputs, np.full(n, strange), np.full(2, counts))

    def _see(self, model: Model) -> None:
        self._seen.append((model, model.vector.tobytes()))


def _models_in(value: Any) -> list[Model]:
    """Those of a step or an answer, as far as they lie open."""
    match value:
        case Model():
            return [value]
        case Offer():
            return [value.model]
        case tuple() | list():
            return [model for item in value for model in _models_in(item)]
        case Step():
            named = (getattr(value, name, None) for name in ("model", "models", "teacher"))
            return [model for item in named for model in _models_in(item)]
    return []
