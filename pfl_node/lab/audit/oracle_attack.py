"""The attack on EvaluateModel: a peer has crafted models scored until it is refused. The victim is a node's real
host, without the network."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import Reason, Refused
from pfl_node.lab.audit.crafted_models import ModelForge, Vector
from pfl_node.learning.trainer import TrainerThread
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
Sample = tuple[Vector, int]


@dataclass(frozen=True, slots=True)
class Attack:
    """A score for every attempt, and the mean number of answers per attempt."""

    members: list[float]
    others: list[float]
    answers: float


def host_of(settings: Settings, learner: Learner, trainer: TrainerThread) -> Host:
    """A victim whose noise follows from the seed."""
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
    """`trials` attempts on members and as many on others. Each is made by another peer, which spends its whole
    budget on one sample."""
    trainer = TrainerThread()
    chance = np.random.default_rng((settings.seed, 6))
    forge = ModelForge(learner.layout, members[0][0].size)
    found: dict[bool, list[float]] = {True: [], False: []}
    answers = 0
    try:
        for trial in range(trials):
            if trial % (PEERS // 2) == 0:
                host = host_of(settings, learner, trainer)
            for mine, pool in ((True, members), (False, others)):
                x, y = pool[trial % len(pool)]
                scores = await _scores(host, forge, x, y, PeerId(f"{trial}-{mine}"), chance)
                found[mine].append(sum(suspicion(settings, score, forge.classes) for score in scores))
                answers += len(scores)
    finally:
        await trainer.close()
    return Attack(found[True], found[False], answers / (2 * trials))


async def _scores(
    host: Host, forge: ModelForge, x: Vector, y: int, me: PeerId, chance: np.random.Generator
) -> list[Eval]:
    """One exact answer is enough. Noisy ones are collected until the budget is spent, each for another model,
    because the answer for the same model is repeated."""
    scores: list[Eval] = []
    while not scores or host.oracle:
        model = forge.model(x, y, chance, blind=host.oracle is not None)
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
