"""How long things take in virtual time: training, scoring, messages. Pure; chance is handed in."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from random import Random

from pfl_node.settings import TrainSettings
from pfl_node.steps import Distill, Predict, Train

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

    def speed(self, chance: Random) -> float:
        return chance.uniform(*self.speeds)

    def work(self, seconds: float, speed: float, chance: Random) -> float:
        """One job on one node; speed is a factor of its duration."""
        return seconds * speed * chance.uniform(1 - self.jitter, 1 + self.jitter)

    def travel(self, nbytes: int, chance: Random) -> float:
        """One message, one way."""
        wait = self.latency * chance.uniform(1 - self.latency_jitter, 1 + self.latency_jitter)
        return wait + (nbytes + self.header) / self.bandwidth


def batches(step: Train, settings: TrainSettings, samples: int) -> int:
    """How many batches a Train asks for, as far as the settings tell."""
    steps = step.steps if step.steps is not None or step.epochs is not None else settings.steps
    if steps is not None:
        return steps
    epochs = step.epochs if step.epochs is not None else settings.epochs if settings.epochs is not None else 1.0
    return max(1, ceil(epochs * samples / (settings.batch or BATCH)))


def predicting(step: Predict, costs: Costs, samples: int, auxiliary: int) -> float:
    """Seconds: a look at every auxiliary sample, and the autoencoder."""
    return costs.sample * auxiliary + costs.batch * step.novelty * ceil(samples / BATCH)


def distilling(step: Distill, costs: Costs, auxiliary: int) -> float:
    """Seconds: batches of training, and a look at the samples held back after every epoch."""
    held = round(step.held * auxiliary)
    return step.epochs * (costs.batch * ceil((auxiliary - held) / step.batch) + costs.sample * held)
