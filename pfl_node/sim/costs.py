"""How long training, scoring and messages take in virtual time. Pure: the caller passes `chance`, a uniform draw
from [0, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pfl_node.node.ports import Job
from pfl_node.sim.learner_port import LearnerPort

BATCH = 8  # samples in a batch of the autoencoder


@dataclass(frozen=True, slots=True)
class Costs:
    """In seconds unless stated otherwise. The defaults fit a small model on one core and a local network."""

    batch: float = 0.01  # to train on one batch
    sample: float = 0.0004  # to score one sample
    speeds: tuple[float, float] = (0.8, 1.25)  # range of a node's own factor on durations
    jitter: float = 0.05  # largest deviation of a job from its mean, relative to the mean
    latency: float = 0.002  # one way
    latency_jitter: float = 0.5
    bandwidth: float = 1e8  # bytes per second
    header: int = 200  # bytes added to every message
    start: float = 0.5  # nodes start within this interval
    detection: tuple[float, float] = (5.0, 10.0)  # until a silent node is declared dead
    healing: tuple[float, float] = (0.5, 5.0)  # after a partition, until the other side is seen as alive
    news: float = 0.2  # until all members know of a join or a leave

    def speed(self, chance: float) -> float:
        return between(*self.speeds, chance)

    def work(self, seconds: float, speed: float, chance: float) -> float:
        """The duration of one job on one node; `speed` is a factor on it."""
        return seconds * speed * between(1 - self.jitter, 1 + self.jitter, chance)

    def travel(self, nbytes: int, chance: float) -> float:
        """The one-way delay of a message."""
        wait = self.latency * between(1 - self.latency_jitter, 1 + self.latency_jitter, chance)
        return wait + (nbytes + self.header) / self.bandwidth


def between(low: float, high: float, chance: float) -> float:
    return low + (high - low) * chance


def seconds_of(job: Job, costs: Costs, learner: LearnerPort) -> float:
    """The duration of a job on a node of speed 1."""
    options, auxiliary = job.options, learner.predictions.entries[0].shape[0] if learner.predictions else 0
    match job.kind:
        case "train":
            return costs.batch * learner.batches(options.get("epochs"), options.get("steps"))
        case "gradient":
            samples = options["samples"]
            return costs.batch * (1 if samples is None else learner.batches(min(1.0, samples / learner.samples)))
        case "distill":  # in every epoch, train on batches and, with `best`, score the held-out samples
            held = round(options["held"] * auxiliary)
            evaluation = costs.sample * held * options["best"]
            epoch = costs.batch * ceil((auxiliary - held) / options["batch"]) + evaluation
            return float(options["epochs"] * epoch)
        case "predict":  # predict every auxiliary sample and train the autoencoder
            training = costs.batch * int(options["novelty"]) * ceil(learner.samples / BATCH)
            return costs.sample * auxiliary + training
        case "score":
            models = job.models if isinstance(job.models, Sequence) else ()
            return costs.sample * len(models) * learner.size(options.get("split", "train"), options.get("samples"))
        case "each":
            return costs.sample * learner.size("train", None)
    return 0.0
