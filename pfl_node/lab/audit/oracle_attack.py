"""The attack on EvaluateModel: a peer has crafted models scored until it is refused. The victim is a node's real
host, without the network."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import ConfigError, Reason, Refused
from pfl_node.learning.trainer import TrainerThread
from pfl_node.model import Layout, Model
from pfl_node.node.host import Host
from pfl_node.node.notifier import Notifier
from pfl_node.policies.base import Policy
from pfl_node.protocol.mailbox import Limits, Mailbox
from pfl_node.protocol.privacy.noisy_scores import PEERS, NoisyScores
from pfl_node.protocol.published import PublishedModels
from pfl_node.settings import Settings
from pfl_node.types import Envelope, Eval, Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner

VICTIM = PeerId("victim")
CALL = "EvaluateModel"
NEAR = 1e-3  # half the width of the response along the direction
SURE = 30.0  # the logit of the right class
HUGE = np.float32(3e38)
Vector = npt.NDArray[np.floating]
Sample = tuple[Vector, int]


@dataclass(frozen=True, slots=True)
class Attack:
    """A score for every attempt, and the mean number of answers per attempt."""

    members: list[float]
    others: list[float]
    answers: float


def host_of(settings: Settings, learner: Learner, trainer: TrainerThread) -> Host:
    """A victim whose noise is determined by the seed."""
    serve = settings.serve
    box = Mailbox(Limits(per_peer=serve.per_peer, inbox=serve.inbox))
    published = PublishedModels(VICTIM, serve, Policy.serves)
    chance = random.Random(f"{settings.seed}/audit")
    oracle = NoisyScores(settings.privacy, chance) if settings.privacy.oracle else None
    made = Host(VICTIM, settings.run, serve, box, Notifier(), window=published, oracle=oracle)
    made.open(learner, ThreadTrainer.of(trainer, learner))
    return made


async def attack(
    settings: Settings, learner: Learner, members: Sequence[Sample], others: Sequence[Sample], trials: int
) -> Attack:
    """`trials` attempts on members and as many on others. Each attempt is made by a new peer, which spends its
    whole budget on one sample."""
    trainer = TrainerThread()
    chance = np.random.default_rng((settings.seed, 6))
    crafted = CraftedModels(learner.layout, members[0][0].size)
    found: dict[bool, list[float]] = {True: [], False: []}
    answers = 0
    try:
        for trial in range(trials):
            if trial % (PEERS // 2) == 0:
                host = host_of(settings, learner, trainer)
            for mine, pool in ((True, members), (False, others)):
                x, y = pool[trial % len(pool)]
                scores = await _scores(host, crafted, x, y, PeerId(f"{trial}-{mine}"), chance)
                found[mine].append(sum(suspicion(settings, score, crafted.classes) for score in scores))
                answers += len(scores)
    finally:
        await trainer.close()
    return Attack(found[True], found[False], answers / (2 * trials))


async def _scores(
    host: Host, crafted: CraftedModels, x: Vector, y: int, me: PeerId, chance: np.random.Generator
) -> list[Eval]:
    """One exact answer is enough. Noisy answers are collected until the budget is spent, each for a new model,
    because the same model gets the same answer."""
    scores: list[Eval] = []
    while not scores or host.oracle:
        model = crafted.model(x, y, chance, blind=host.oracle is not None)
        try:
            host.admit(CALL, Envelope(me, host.run))
            scores.append(await host.evaluate(Offer(me, model)))
        except Refused as refused:
            if refused.reason is not Reason.BUDGET:
                raise
            break
    return scores


def suspicion(settings: Settings, score: Eval, classes: int) -> float:
    """The log-likelihood ratio of the answer, member to non-member, under Laplace noise. The attacker knows the
    settings and the number of samples."""
    s, n = settings.privacy, score.samples
    if not s.oracle:
        return _likelier(score.loss, math.log(classes), -math.log(classes) / n)
    found = 0.0
    epsilon = s.oracle_epsilon / (2 if s.oracle_tells == "both" else 1)
    if s.oracle_tells != "accuracy":
        found += _likelier(score.loss, s.oracle_clip, -s.oracle_clip / n) * epsilon * n / s.oracle_clip
    if s.oracle_tells != "loss":
        found += _likelier(score.accuracy, 1 / classes, 1 / n) * epsilon * n
    return found


def _likelier(value: float, without: float, shift: float) -> float:
    return abs(value - without) - abs(value - without - shift)


# -- crafted models --------------------------------------------------------------------------------------------


class CraftedModels:
    """Models crafted to test whether a node has a sample: right about this sample, equally wrong about all others.

    They are networks of one hidden layer, whose first units project the input on a random direction and respond
    only near the sample. Another sample of the node is that near with a probability of a few in a thousand.
    """

    def __init__(self, layout: Layout, inputs: int) -> None:
        entries = [*layout.core_entries, *layout.head_entries]
        shapes = [e.shape for e in entries]
        if len(shapes) != 4 or len(shapes[0]) != 2 or shapes[0][1] != inputs or shapes[2][1:] != shapes[1]:
            raise ConfigError("the audit needs models of one hidden layer: keep task digits with model = mlp")
        self.layout = layout
        self.classes = shapes[3][0]

    def model(self, x: Vector, y: int, chance: np.random.Generator, *, blind: bool) -> Model:
        """Classifies the sample (x, y) as y with loss 0, and all others as the class after y. Their loss is
        log(classes), or with `blind` NaN, which a node counts as its largest loss."""
        vector = np.zeros(self.layout.size, np.float32)
        w1, b1, w2, b2 = (vector[span].reshape(entry.shape) for entry, span in self.layout.spans())
        along = chance.normal(size=x.size).astype(np.float32)
        here, wrong = np.float32(along @ x.ravel()), (y + 1) % self.classes
        if blind:  # two units, for above and below; their outputs overflow to infinity
            w1[0], b1[0], w1[1], b1[1] = along, -here - NEAR, -along, here - NEAR
            w1[:2] *= 1e6
            b1[:2] *= 1e6
            w2[wrong, :2], w2[y, :2], b2[y] = HUGE, -HUGE, SURE
            return Model(self.layout, vector)
        for unit, (shift, weight) in enumerate(((NEAR, 1.0), (0.0, -2.0), (-NEAR, 1.0))):  # a tent function
            w1[unit], b1[unit] = along, -here + shift
            w2[y, unit] = weight * SURE / NEAR
        b2[wrong] = 1e-3
        return Model(self.layout, vector)
