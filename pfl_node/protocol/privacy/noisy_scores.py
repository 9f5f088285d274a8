"""Answers to "how does my model do on your data" that tell next to nothing about a single sample. Pure.

One figure is the mean of what each sample counts, clipped and rounded to a grid of whole numbers: another sample
in the place of one moves the sum by at most `GRID`. Laplace noise of the scale GRID / epsilon makes an answer
epsilon-differentially private for that, exactly. The number of samples is no secret: models carry it, too.
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
PEERS = 4096  # names that are answered at all: without TLS they can be invented
KEPT = 100_000  # answers that are given again
SLACK = 1e-9  # of sums of floats
TOLD = "told"

Figures = npt.NDArray[np.floating[Any]]  # one for each sample


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of a model, and to whom."""

    score: Eval
    to: set[PeerId] = field(default_factory=set)


def grid_sum(figures: Figures, most: float) -> int:
    """The sum of what each sample counts, from 0 to GRID; what is not a number counts as the most."""
    known = np.nan_to_num(np.asarray(figures, np.float64), nan=most)
    return int(np.rint(np.clip(known, 0.0, most) / most * GRID).astype(np.int64).sum())


def noisy_mean(figures: Figures, most: float, epsilon: float, chance: Random) -> float:
    """From 0 to `most`; epsilon-differentially private."""
    noise = laplace(Fraction(repr(epsilon)) / GRID, chance)
    mean = (grid_sum(figures, most) + noise) / (GRID * len(figures))
    return min(max(mean, 0.0), 1.0) * most


class NoisyScores:
    """One node's answers. A peer that asks again about the same model hears the same, for nothing; another peer
    hears the same, too, and pays for it."""

    def __init__(self, settings: PrivacySettings, chance: Random, note: Note = nowhere) -> None:
        self.settings = settings
        self.spent: dict[PeerId, float] = {}
        self.total = 0.0  # of all answers that differ
        self.answers = 0
        self._chance = chance
        self._note = note
        self._told: OrderedDict[str, Answer] = OrderedDict()
        self._telling = threading.Lock()  # or two answers at once could overdraw a budget

    def admit(self, peer: PeerId) -> None:
        """Is an answer left for this peer? Raises Refused."""
        s, spent = self.settings, self.spent.get(peer, 0.0)
        if spent + s.oracle_epsilon > s.oracle_budget + SLACK:
            text = f"you have heard what I tell one peer: epsilon {spent:g} of {s.oracle_budget:g}"
            raise Refused(Reason.BUDGET, text, peer)
        if s.oracle_total is not None and self.total + s.oracle_epsilon > s.oracle_total + SLACK:
            text = f"I have told all that I tell: epsilon {self.total:g} of {s.oracle_total:g}"
            raise Refused(Reason.BUDGET, text, peer)
        if peer not in self.spent and len(self.spent) >= PEERS:
            raise Refused(Reason.BUDGET, f"I have answered {PEERS} peers, and answer no others", peer)

    def known(self, peer: PeerId, model: Model) -> Eval | None:
        """What this peer was told of this model. None: nothing yet, and it may ask; raises Refused."""
        self.admit(peer)
        answer = self._told.get(digest(model))
        return answer.score if answer and peer in answer.to else None

    def tell(self, peer: PeerId, model: Model, losses: Figures, right: Figures) -> Eval:
        """What is told is written down before it is; where that fails nothing is told. Threads may call it."""
        with self._telling:
            return self.known(peer, model) or self._tell(peer, digest(model), losses, right)

    def _tell(self, peer: PeerId, name: str, losses: Figures, right: Figures) -> Eval:
        answer = self._told.get(name)
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
            self._note(TOLD, row)
        except StoreError as error:
            text = "I cannot write down what I tell, so I tell nothing; try again later"
            raise Refused(Reason.NOT_READY, text, peer) from error
        self.load(row)
        return score

    def load(self, row: Mapping[str, Any]) -> None:
        """A line that `tell` wrote."""
        peer, epsilon = PeerId(str(row["peer"])), float(row["epsilon"])
        self.spent[peer] = self.spent.get(peer, 0.0) + epsilon
        self.total += 0.0 if row["again"] else epsilon
        self.answers += 1
        accuracy = math.nan if row["accuracy"] is None else float(row["accuracy"])
        score = Eval(float(row["loss"]), accuracy, int(row["samples"]))
        self._told.setdefault(str(row["model"]), Answer(score)).to.add(peer)
        while len(self._told) > KEPT:
            self._told.popitem(last=False)

    def dump(self) -> dict[str, Any]:
        """What goes on after a segment of a simulation, as JSON has it."""
        told = [
            [
                name,
                a.score.loss,
                None if math.isnan(a.score.accuracy) else a.score.accuracy,
                a.score.samples,
                sorted(a.to),
            ]
            for name, a in self._told.items()
        ]
        return {"spent": self.spent, "total": self.total, "answers": self.answers, "told": told}

    def restore(self, row: Mapping[str, Any]) -> None:
        self.spent, self.total, self.answers = dict(row["spent"]), row["total"], row["answers"]
        for name, loss, accuracy, samples, to in row["told"]:
            score = Eval(loss, math.nan if accuracy is None else accuracy, samples)
            self._told[name] = Answer(score, set(to))

    def _draw(self, losses: Figures, right: Figures) -> Eval:
        s, n = self.settings, len(losses)
        tells = "loss" if np.isnan(right).all() else s.oracle_tells  # labels that are no classes
        epsilon = s.oracle_epsilon / (2 if tells == "both" else 1)
        accuracy = math.nan if tells == "loss" else noisy_mean(right, 1.0, epsilon, self._chance)
        if tells == "accuracy":
            return Eval(1.0 - accuracy, accuracy, n)
        return Eval(noisy_mean(losses, s.oracle_clip, epsilon, self._chance), accuracy, n)


def digest(model: Model) -> str:
    """Names the numbers of a model."""
    return blake2b(model.vector.tobytes(), digest_size=16).hexdigest()
