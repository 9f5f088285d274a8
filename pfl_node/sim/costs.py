"""How long things take in virtual time: training, scoring, messages. Pure; chance is handed in, as numbers
between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from pfl_node.node.ports import Job
from pfl_node.settings import TrainSettings
from pfl_node.sim.learner_port import LearnerPort

BATCH = 8  # samples; the settings' default


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, unless said otherwise. The defaults: a small model on one core, a local network."""

    batch: float = 0.01  # of training
    sample: float = 0.0004  # of scoring
    speeds: tuple[float, float] = (0.8, 1.25)  # a node's own factor lies between these
    jitter: float = 0.05  # how far one job may be from its mean, as a part of it
    latency: float = 0.002  # one way
    latency_jitter: float = 0.5
    bandwidth: float = 1e8  # bytes per second
    header: int = 200  # bytes that travel with every message
    start: float = 0.5  # nodes begin within so many seconds of each other
    detection: tuple[float, float] = (5.0, 10.0)  # until a silent node is believed dead
    healing: tuple[float, float] = (0.5, 5.0)  # until the other side of a healed partition is believed alive
    news: float = 0.2  # until a join or a leave is known to all

    def speed(self, chance: float) -> float:
        return between(*self.speeds, chance)

    def work(self, seconds: float, speed: float, chance: float) -> float:
        """One job on one node; speed is a factor of its duration."""
        return seconds * speed * between(1 - self.jitter, 1 + self.jitter, chance)

    def travel(self, nbytes: int, chance: float) -> float:
        """One message, one way."""
        wait = self.latency * between(1 - self.latency_jitter, 1 + self.latency_jitter, chance)
        return wait + (nbytes + self.header) / self.bandwidth


def between(low: float, high: float, chance: float) -> float:
    return low + (high - low) * chance


def seconds_of(job: Job, costs: Costs, learner: LearnerPort, settings: TrainSettings) -> float:
    """What a job takes on a node of speed 1."""
    told = job.options
    match job.kind:
        case "train":
            return costs.batch * batches(told, settings, learner.samples)
        case "distill":
            return distilling(told, costs, _auxiliary(learner))
        case "predict":
            return predicting(told, costs, learner.samples, _auxiliary(learner))
        case "score":
            models = job.models if isinstance(job.models, Sequence) else ()
            return costs.sample * len(models) * learner.size(told.get("split", "train"), told.get("samples"))
        case "each":
            return costs.sample * learner.size("train", None)
    return 0.0


def _auxiliary(learner: LearnerPort) -> int:
    return learner.predictions.entries[0].shape[0] if learner.predictions else 0


def batches(told: Mapping[str, Any], settings: TrainSettings, samples: int) -> int:
    """How many batches a Train asks for, as far as the settings tell."""
    asked = told.get("steps"), told.get("epochs")
    steps = asked[0] if asked != (None, None) else settings.steps
    if steps is not None:
        return int(steps)
    epochs = next((e for e in (asked[1], settings.epochs) if e is not None), 1.0)
    return max(1, ceil(epochs * samples / (settings.batch or BATCH)))


def predicting(told: Mapping[str, Any], costs: Costs, samples: int, auxiliary: int) -> float:
    """Seconds: a look at every auxiliary sample, and the autoencoder."""
    return costs.sample * auxiliary + costs.batch * int(told["novelty"]) * ceil(samples / BATCH)


def distilling(told: Mapping[str, Any], costs: Costs, auxiliary: int) -> float:
    """Seconds: batches of training, and with `best` an evaluation of the held-out samples after every epoch."""
    held = round(told["held"] * auxiliary)
    evaluation = costs.sample * held * told["best"]
    return float(told["epochs"] * (costs.batch * ceil((auxiliary - held) / told["batch"]) + evaluation))
