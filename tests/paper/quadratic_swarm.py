"""Nodes with quadratic losses of different minima, driven together without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.steps import Gather, Gradient, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import Hand, Run, make

P = TypeVar("P", bound=Policy)
NODES = [PeerId(f"n{i}") for i in range(6)]
CURVATURES = dict(zip(NODES, (0.5, 1.0, 1.5, 2.0, 0.7, 1.2), strict=True))
MINIMA = dict(zip(NODES, (-3.0, 5.0, 1.0, -8.0, 2.0, 10.0), strict=True))
# sum a_i (x - m_i) = 0
OPTIMUM = sum(CURVATURES[n] * MINIMA[n] for n in NODES) / sum(CURVATURES.values())


def star(folder: Path) -> str:
    """A graph whose nodes have different degrees: the first node is the neighbour of all others."""
    path = folder / "star.txt"
    path.write_text("".join(f"0 {i}\n" for i in range(1, len(NODES))))
    return str(path)


def gradient(me: PeerId, model: Model) -> Model:
    """Of a / 2 (x - m)^2, in every number."""
    return Model(model.layout, np.float32(CURVATURES[me]) * (model.vector - np.float32(MINIMA[me])))


def train(me: PeerId, step: Train) -> Model:
    """Gradient descent with the step's correction."""
    assert step.steps is not None
    assert step.lr is not None
    model = step.model
    for _ in range(step.steps):
        along = gradient(me, model).vector + (0 if step.correction is None else step.correction.vector)
        model = Model(model.layout, (model.vector - np.float32(step.lr) * along).astype(np.float32))
    return model


def swarm(cls: type[P], rounds: int, **knobs: Any) -> Mapping[PeerId, P]:
    """All nodes after so many rounds. Nothing is lost."""
    sent: dict[tuple[PeerId, PeerId, int | None], Offer] = {}
    policies = {me: make(cls, rounds=rounds, me=me, start=float(i), **knobs) for i, me in enumerate(NODES)}
    runs = [Run(policy.main(), beside(me, sent)) for me, policy in policies.items()]
    for _ in range(rounds):
        for run in runs:
            run.to(Gather)
        for run in runs:
            run.past(Report)
    assert all(run.pending is None for run in runs)
    return policies


def beside(me: PeerId, sent: dict[tuple[PeerId, PeerId, int | None], Offer]) -> Hand:
    hand = Hand([p for p in NODES if p != me])
    hand.answers[Train] = lambda s: train(me, s)
    hand.answers[Gradient] = lambda s: gradient(me, s.model)

    def send(step: Send) -> None:
        offer = Offer(me, step.model, step.round, vectors=step.vectors)
        sent.update({(me, p, step.round): offer for p in step.to})

    hand.answers[Send] = send
    hand.answers[Gather] = lambda s: tuple(sent[p, me, s.round] for p in s.peers)
    return hand


def mean(models: Any) -> Any:
    return np.mean([m.vector for m in models], axis=0)
