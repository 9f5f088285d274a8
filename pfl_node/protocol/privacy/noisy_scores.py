"""Answers to EvaluateModel that reveal almost nothing about a single sample. Pure.

An answer is the mean of one value per sample, clipped and rounded to a grid of integers: replacing one sample
changes the sum by at most `GRID`. Laplace noise of the scale GRID / epsilon makes an answer exactly
epsilon-differentially private. The number of samples is public, because models carry it.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import Reason, Refused, StoreError
from pfl_node.model import Model
from pfl_node.protocol.privacy.dp_account import Note, nowhere
from pfl_node.protocol.privacy.laplace import laplace
from pfl_node.settings.sections import PrivacySettings
from pfl_node.types import Eval, PeerId

GRID = 1 << 16
PEERS = 4096  # maximum number of peers that get answers: without TLS a caller can invent names
KEPT = 100_000  # answers that are remembered
SLACK = 1e-9  # tolerance for sums of floats
ANSWERED = "told"  # the event in the ledger

Figures = npt.NDArray[np.floating[Any]]  # one per sample


@dataclass(frozen=True, slots=True)
class Answer:
    """The score of a model, and the peers that received it."""

    score: Eval
    to: set[PeerId] = field(default_factory=set)


def grid_sum(figures: Figures, most: float) -> int:
    """The sum of the samples' values, scaled to 0..GRID; NaN counts as the maximum."""
    known = np.nan_to_num(np.asarray(figures, np.float64), nan=most)
    return int(np.rint(np.clip(known, 0.0, most) / most * GRID).astype(np.int64).sum())


def noisy_mean(figures: Figures, most: float, epsilon: float, chance: Random) -> float:
    """A mean from 0 to `most` that is epsilon-differentially private."""
    noise = laplace(Fraction(repr(epsilon)) / GRID, chance)
    mean = (grid_sum(figures, most) + noise) / (GRID * len(figures))
    return min(max(mean, 0.0), 1.0) * most


class NoisyScores:
    """The answers of one node. A peer that asks again about the same model gets the same answer free of charge;
    another peer gets the same answer and is charged."""

    def __init__(self, settings: PrivacySettings, chance: Random, note: Note = nowhere) -> None:
        self.settings = settings
        self.spent: dict[PeerId, float] = {}
        self.total = 0.0  # epsilon of all distinct answers
        self.answers = 0
        self._chance = chance
        self._note = note
        self._remembered: OrderedDict[str, Answer] = OrderedDict()
        self._answer_lock = threading.Lock()  # two concurrent answers could exceed a budget

    def admit(self, peer: PeerId) -> None:
        """Raises Refused if the peer's budget does not suffice for another answer."""
        s, spent = self.settings, self.spent.get(peer, 0.0)
        if spent + s.oracle_epsilon > s.oracle_budget + SLACK:
            text = f"your budget is used up: epsilon {spent:g} of {s.oracle_budget:g}"
            raise Refused(Reason.BUDGET, text, peer)
        if s.oracle_total is not None and self.total + s.oracle_epsilon > s.oracle_total + SLACK:
            text = f"the budget for all peers is used up: epsilon {self.total:g} of {s.oracle_total:g}"
            raise Refused(Reason.BUDGET, text, peer)
        if peer not in self.spent and len(self.spent) >= PEERS:
            raise Refused(Reason.BUDGET, f"{PEERS} peers have been answered, which is the limit", peer)

    def known(self, peer: PeerId, model: Model) -> Eval | None:
        """The answer that this peer already received for this model; None: there is none, and the peer may request
        one. Raises Refused."""
        self.admit(peer)
        answer = self._remembered.get(digest(model))
        return answer.score if answer and peer in answer.to else None

    def answer(self, peer: PeerId, model: Model, losses: Figures, right: Figures) -> Eval:
        """Write the answer to the ledger, then return it. If the write fails, refuse. Thread-safe."""
        with self._answer_lock:
            return self.known(peer, model) or self._new_answer(peer, digest(model), losses, right)

    def _new_answer(self, peer: PeerId, name: str, losses: Figures, right: Figures) -> Eval:
        answer = self._remembered.get(name)
        score = answer.score if answer else self._draw(losses, right)
        row = {
            "peer": peer,
            "model": name,
            "epsilon": self.settings.oracle_epsilon,
            "again": answer is not None,
            "loss": score.loss,
            "accuracy": None if math.isnan(score.accuracy) else score.accuracy,
            "samples": score.samples,
        }
        try:
            self._note(ANSWERED, row)
        except StoreError as error:
            text = "the answer cannot be recorded, so it is withheld; try again later"
            raise Refused(Reason.NOT_READY, text, peer) from error
        self.load(row)
        return score

    def load(self, row: Mapping[str, Any]) -> None:
        """Restore a line that `answer` wrote."""
        peer, epsilon = PeerId(str(row["peer"])), float(row["epsilon"])
        self.spent[peer] = self.spent.get(peer, 0.0) + epsilon
        self.total += 0.0 if row["again"] else epsilon
        self.answers += 1
        accuracy = math.nan if row["accuracy"] is None else float(row["accuracy"])
        score = Eval(float(row["loss"]), accuracy, int(row["samples"]))
        self._remembered.setdefault(str(row["model"]), Answer(score)).to.add(peer)
        while len(self._remembered) > KEPT:
            self._remembered.popitem(last=False)

    def dump(self) -> dict[str, Any]:
        """The state between segments of a simulation, as JSON values."""
        answers = [
            [
                name,
                a.score.loss,
                None if math.isnan(a.score.accuracy) else a.score.accuracy,
                a.score.samples,
                sorted(a.to),
            ]
            for name, a in self._remembered.items()
        ]
        return {"spent": self.spent, "total": self.total, "answers": self.answers, "told": answers}

    def restore(self, row: Mapping[str, Any]) -> None:
        self.spent, self.total, self.answers = dict(row["spent"]), row["total"], row["answers"]
        for name, loss, accuracy, samples, to in row["told"]:
            score = Eval(loss, math.nan if accuracy is None else accuracy, samples)
            self._remembered[name] = Answer(score, set(to))

    def _draw(self, losses: Figures, right: Figures) -> Eval:
        s, n = self.settings, len(losses)
        tells = "loss" if np.isnan(right).all() else s.oracle_tells  # the labels are not classes
        epsilon = s.oracle_epsilon / (2 if tells == "both" else 1)
        accuracy = math.nan if tells == "loss" else noisy_mean(right, 1.0, epsilon, self._chance)
        if tells == "accuracy":
            return Eval(1.0 - accuracy, accuracy, n)
        return Eval(noisy_mean(losses, s.oracle_clip, epsilon, self._chance), accuracy, n)


def digest(model: Model) -> str:
    return blake2b(model.vector.tobytes(), digest_size=16).hexdigest()
