"""A driver that gives a policy the worst answers that steps allow: no peers, silent or changing peers, valid but
meaningless values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from random import Random
from typing import Any, TypeVar

import numpy as np

from pfl_node import aggregate, predictions, steps
from pfl_node.model import Layout, Model, PartialModel
from pfl_node.policies.base import Policy
from pfl_node.settings import AggregateSettings
from pfl_node.sim.event_journal import exact
from pfl_node.steps import Flow, Publish, Record, Report, Send, Step, advance
from pfl_node.testing.contract.harness import ROUNDS, STOPPED, Broken
from pfl_node.testing.contract.toy_learner import AUXILIARY, LAYOUT, ToyLearner
from pfl_node.types import Eval, Offer, Part, PeerId, expected_vectors, parts_of

T = TypeVar("T")
ME = PeerId("me")
CROWD = tuple(PeerId(f"p{i:02}") for i in range(30))
STEPS = 20_000  # after which a policy is considered to be in an endless loop
RULES = tuple(AggregateSettings(rule=rule) for rule in ("mean", "median", "multi_krum", "clipping"))
NUMBERS = (0.0, 0.5, 0.5, 1.0, -1e6, 1e6)
TAGS, SIZES = (0, 0, 1, 7, 2**32 - 1), (0, 1, 10, 2**63)
LOSSES, ACCURACIES = (nan, inf, 0.0, -1.0, 0.5, 1e30), (nan, 0.0, 0.5, 1.0)


class Hostile:
    """`present`: the probability that Peers lists a peer; `answers`: that it answers any other step."""

    def __init__(self, policy: Policy, rng: Random, *, present: float, answers: float) -> None:
        self.policy = policy
        self.rng = rng
        self.present = present
        self.answers = answers
        self.silent_after: int | None = (
            None  # after this round all peers are present, none answers, nothing is random
        )
        self.learner = ToyLearner(point=1.0, cluster=0)
        self.reports: list[Report] = []
        self.said: list[Send | Report] = []  # in order
        self.snapshots: list[dict[str, Any]] = []
        self.stopped = False  # early
        self._now = 0.0
        self._silent = False
        self._seen: list[tuple[Model, bytes]] = []  # every model of a step or answer, with its original bytes

    def run(self) -> None:
        """Run `main` to its end, interleaved with handlers at random."""
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
        raise Broken(f"it has not ended after {STEPS} steps, in round {self.policy.round}")

    @property
    def reported(self) -> list[int]:
        return [report.round for report in self.reports]

    def check(self) -> None:
        if self.policy.more or any(b <= a for a, b in pairwise(self.reported)):
            raise Broken(f"it ended in round {self.policy.round} of {ROUNDS} and reported {self.reported}")
        if not self.policy.model.is_finite():
            raise Broken("its final model is not finite")
        if any(model.numbers.tobytes() != was for model, was in self._seen):
            raise Broken("it modified the vector of a model, which other nodes may share")

    def _handler(self) -> Flow:
        quiet = self.policy.quiet_after is not None and self.rng.random() < 0.5
        if quiet or not (came := self._offers([self.rng.choice(CROWD)], self.policy.takes, None)):
            return self.policy.on_quiet()
        return self.policy.on_model(came[0])

    def silence(self) -> None:
        self.present, self.answers, self._silent = 1.0, 0.0, True

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, step: Step[Any]) -> Any:
        if not isinstance(step, steps.Average | Send):
            for model in _models_in(step):
                if isinstance(model, PartialModel):
                    raise Broken(f"{type(step).__name__} of a partial model: complete it with `.over(self.model)`")
        found = self._answer(step)
        for model in (*_models_in(step), *_models_in(found)):
            self._seen.append((model, model.numbers.tobytes()))
        return found

    def _answer(self, step: Step[Any]) -> Any:
        match step:
            case steps.Sleep(seconds):
                if not (isfinite(seconds) and seconds >= 0):
                    raise Broken(f"it slept for {seconds} s")
                self._now += seconds
                return self._now
            case steps.Peers():
                return tuple(self._some(CROWD, self.present))
            case Send():
                if step.model.layout.part not in self.policy.takes:
                    raise Broken(
                        f"it sent {step.model.layout.part}, but takes {self.policy.takes}: every peer refuses it"
                    )
                declared = expected_vectors(self.policy.vectors, step.model.layout.part)
                if (given := parts_of(step.vectors)) != declared:
                    raise Broken(f"it sent the vectors {given}, but declares {dict(declared)}")
                self.said.append(step)
                return tuple(self._some(step.to))
            case steps.Gather():
                strangers = self._some(CROWD, 0.1) if step.others else []
                return self._offers([*step.peers, *strangers], self.policy.takes, step.round)
            case steps.Receive():
                return self._offers(self._some(CROWD)[: step.n], self.policy.takes, None)
            case steps.Fetch():
                offers = self._offers(step.peers, (step.part,), self.rng.randrange(ROUNDS))
                return tuple(o for o in offers if not (step.whole and isinstance(o.model, PartialModel)))
            case steps.Ask():
                return {p: self._eval() for p in self._some(step.peers)}
            case steps.Linger():
                return step.seconds is None or self.rng.random() < 0.2
            case Record() | Publish() | Report():
                return self._note(step)
        return self._learn(step)

    def _learn(self, step: Step[Any]) -> Any:
        learner, seed = self.learner, self.rng.randrange(1 << 30)
        match step:
            case steps.Fresh():
                return learner.fresh(step.seed, step.part)
            case steps.Train():  # a diverged training returns the model unchanged
                return step.model if self._rarely() else learner.train(step.model, seed=seed, **step.options)
            case steps.Gradient():  # a gradient that is not finite is answered with zeros
                return self._numbers(LAYOUT) if self._rarely() else learner.gradient(step.model)
            case steps.Score() if self._silent:
                return learner.score(step.models)
            case steps.Score():
                return tuple(self._eval() for _ in step.models)
            case steps.Average():
                rule = RULES[0] if self._silent else self.rng.choice(RULES)
                return aggregate.combine(rule, step.mine, step.others, step.weights, step.own)
            case steps.Predict():
                return learner.predict(step.model, seed=seed, **step.options)
            case steps.Distill():
                return learner.distill(step.model, teacher=step.teacher, seed=seed)
        raise Broken(f"it awaited {step!r}, an unknown step")

    def _note(self, step: Record | Publish | Report) -> None:
        if not isinstance(step, Publish):
            json.dumps(exact(step.data))
        if isinstance(step, Record):
            self.stopped |= step.event == STOPPED
        if isinstance(step, Report):
            if step.round != self.policy.round:
                raise Broken(
                    f"in round {self.policy.round} it reported round {step.round}: a restart would resume wrongly"
                )
            self.reports.append(step)
            self.said.append(step)
            self.snapshots.append(self.policy.snapshot())
            if step.round == self.silent_after:
                self.silence()

    # -- random values --------------------------------------------------------------------------------------------

    def _some(self, peers: Iterable[PeerId], share: float | None = None) -> list[PeerId]:
        share = self.answers if share is None else share
        return [p for p in dict.fromkeys(peers) if self.rng.random() < share]

    def _rarely(self) -> bool:
        return not self._silent and self.rng.random() < 0.2

    def _eval(self) -> Eval:
        return Eval(self.rng.choice(LOSSES), self.rng.choice(ACCURACIES), self.rng.choice(SIZES))

    def _offers(self, peers: Sequence[PeerId], parts: Sequence[Part], round: int | None) -> tuple[Offer, ...]:
        return tuple(self._offer(p, self.rng.choice(parts), round) for p in self._some(peers) if parts)

    def _offer(self, sender: PeerId, part: Part, round: int | None) -> Offer:
        model = self._predictions() if part == "predictions" else self._numbers(LAYOUT.of(part))
        notes = {str(self.rng.choice(CROWD)): self.rng.choice((0.0, -1e300, 1.0, 1e300)) for _ in range(3)}
        tag, samples = self.rng.choice(TAGS), self.rng.choice(SIZES)
        declared = expected_vectors(self.policy.vectors, part)
        vectors = {name: self._numbers(LAYOUT.of(part)) for name, part in declared.items()}
        return Offer(sender, self._perhaps_partial(model), round, tag, samples, notes, vectors)

    def _perhaps_partial(self, model: Model) -> Model:
        """As with `wire.compress`."""
        if model.layout.part == "predictions" or not self._rarely():
            return model
        places = [i for i in range(model.layout.size) if self.rng.random() < 0.5]
        return model.sparse(places, same=self.rng.random() < 0.5)

    def _numbers(self, layout: Layout) -> Model:
        return Model(layout, np.array([self.rng.choice(NUMBERS) for _ in range(layout.size)], np.float32))

    def _predictions(self) -> Model:
        """Either no probabilities, or certain ones with extreme novelties and counts."""
        layout = self.learner.predictions
        if self.rng.random() < 0.5:
            return self._numbers(layout)
        outputs, classes = np.zeros((n := len(AUXILIARY), 2)), [self.rng.randrange(2) for _ in range(n)]
        outputs[range(n), classes] = 1
        strange, counts = self.rng.choice((0.0, 1e-30, 1e30)), self.rng.choice((0, 1, 1e9))
        return predictions.pack(layout, outputs, np.full(n, strange), np.full(2, counts))


def _models_in(value: Any) -> list[Model]:
    match value:
        case Model():
            return [value]
        case Offer():
            return [value.model, *value.vectors.values()]
        case tuple() | list():
            return [model for item in value for model in _models_in(item)]
        case Step():
            named = (getattr(value, name, None) for name in ("model", "models", "teacher", "correction"))
            return [model for item in named for model in _models_in(item)]
    return []
