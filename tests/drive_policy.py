"""Drives a policy by hand: no event loop, no clock, no torch. Models are a few numbers that a test can read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from pfl_node import aggregate, predictions
from pfl_node.model import Entry, Layout, Model
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.settings import AggregateSettings
from pfl_node.steps import (
    Ask,
    Average,
    Distill,
    Fetch,
    Flow,
    Fresh,
    Gather,
    Gradient,
    Linger,
    Peers,
    Predict,
    Publish,
    Record,
    Report,
    Score,
    Send,
    Sleep,
    Step,
    Train,
    advance,
)
from pfl_node.types import Eval, Offer, PeerId

ME = PeerId("me")
A, B, C, D = (PeerId(name) for name in "abcd")
LAYOUT = Layout((Entry("core", (2,)),), (Entry("head", (1,)),))

P = TypeVar("P", bound=Policy)
S = TypeVar("S", bound=Step[Any])
Answers = dict[type[Step[Any]], Callable[[Any], Any]]


def model(core: float, head: float | None = None) -> Model:
    """A model whose core is `core` everywhere and whose head is `head` (or the same)."""
    return Model(LAYOUT, np.array([core, core, core if head is None else head], np.float32))


def core_of(m: Model) -> float:
    return float(m.vector[0])


def head_of(m: Model) -> float:
    return float(m.vector[-1])


def offer(sender: PeerId, value: float | Model, round: int | None = None, tag: int = 0) -> Offer:
    return Offer(sender, value if isinstance(value, Model) else model(value), round=round, tag=tag)


def make(
    cls: type[P],
    *,
    rounds: int | None = 3,
    me: PeerId = ME,
    start: float = 0.0,
    samples: int = 0,
    truth: int | None = None,
    **options: Any,
) -> P:
    cfg, rng = configure(cls, options), random.Random(str(me))
    return cls(me=me, cfg=cfg, model=model(start), rounds=rounds, seed=0, rng=rng, samples=samples, truth=truth)


def said(*firsts: float, novelty: Sequence[float] | None = None, counts: Sequence[float] | None = None) -> Model:
    """Predictions of two classes: for each sample the probability of the first one."""
    rows = np.array([[p, 1 - p] for p in firsts], np.float32)
    layout = predictions.layout_for(len(firsts), 2, "toy")
    return predictions.pack(layout, rows, _array(novelty), _array(counts))


def _array(values: Sequence[float] | None) -> Any:
    return None if values is None else np.array(values, np.float32)


def losses(*values: float) -> tuple[Eval, ...]:
    return tuple(Eval(loss=v, accuracy=0.0, samples=1) for v in values)


class Hand:
    """Answers steps. By default: training adds 1 to every number, a model's loss is its head, nobody sends
    anything, `served` is what can be fetched and `scores` what the peers say of a model, an average is a real one,
    the predictions are three rows of a model's core, a student takes its teacher's. `asked` is everything that was
    asked, in order."""

    def __init__(self, peers: Sequence[PeerId] = (), answers: Answers | None = None) -> None:
        self.peers = tuple(peers)
        self.now = 0.0
        self.asked: list[Step[Any]] = []
        self.served: dict[PeerId, Offer] = {}
        self.scores: dict[PeerId, Eval] = {}
        self.answers: Answers = {
            Sleep: self._sleep,
            Peers: lambda _: self.peers,
            Send: lambda s: tuple(p for p in s.to if p in self.peers),
            Gather: lambda _: (),
            Fetch: self._fetch,
            Ask: lambda s: {p: self.scores[p] for p in s.peers if p in self.scores},
            Fresh: lambda s: model(100.0 + s.seed).of(s.part),
            Train: lambda s: Model(s.model.layout, s.model.vector + np.float32(1)),
            Gradient: lambda s: s.model,  # of half the squared length
            Score: lambda s: losses(*(head_of(m) for m in s.models)),
            Average: lambda s: aggregate.combine(AggregateSettings(), s.mine, s.others, s.weights, s.own),
            Predict: lambda s: said(*[core_of(s.model)] * 3),
            Distill: lambda s: model(float(predictions.outputs(s.teacher)[0, 0])),
            Publish: lambda _: None,
            Linger: lambda _: True,
            Record: lambda _: None,
            Report: lambda _: None,
            **(answers or {}),
        }

    def answer(self, step: Step[Any]) -> Any:
        self.asked.append(step)
        return self.answers[type(step)](step)

    def run(self, flow: Flow) -> None:
        """Until it ends."""
        Run(flow, self).finish()

    def all(self, kind: type[S]) -> list[S]:
        return [step for step in self.asked if isinstance(step, kind)]

    def _fetch(self, step: Fetch) -> tuple[Offer, ...]:
        found = [self.served[p] for p in dict.fromkeys(step.peers) if p in self.served]
        return tuple(replace(o, model=o.model.of(step.part)) for o in found)

    def _sleep(self, step: Sleep) -> float:
        self.now += step.seconds
        return self.now


class Run:
    """A coroutine under way, so that a test can stop it at a step and let another one go on."""

    def __init__(self, flow: Flow, hand: Hand) -> None:
        self.flow = flow
        self.hand = hand
        self.pending = advance(flow)

    def to(self, kind: type[S]) -> S:
        """Go on until a step of this kind is asked for, and leave it unanswered."""
        for _ in range(10_000):
            assert self.pending is not None, f"ended before a {kind.__name__}"
            if isinstance(self.pending, kind):
                return self.pending
            self.go()
        raise AssertionError(f"no {kind.__name__} in 10,000 steps")

    def go(self) -> None:
        """Answer the pending step."""
        assert self.pending is not None, "it has ended"
        self.pending = advance(self.flow, self.hand.answer(self.pending))

    def past(self, kind: type[S]) -> S:
        """Go on until a step of this kind is answered."""
        step = self.to(kind)
        self.go()
        return step

    def finish(self) -> None:
        for _ in range(10_000):
            if self.pending is None:
                return
            self.go()
        raise AssertionError("no end in 10,000 steps")
