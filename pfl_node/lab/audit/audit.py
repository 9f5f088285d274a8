"""Both attacks on the embedded digits, without and with the privacy controls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import exp, sqrt
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import TaskError
from pfl_node.lab.audit.message_attack import ALONE, EAVESDROPPER, NEIGHBOUR, Attacker, MessageAttack
from pfl_node.lab.audit.oracle_attack import Sample, attack
from pfl_node.node.ports import Plan
from pfl_node.policies import configure, load_policy
from pfl_node.protocol.privacy.dp_account import DpStep
from pfl_node.settings import Settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.learner_port import learners_of
from pfl_node.sim.simulation import Simulation

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.task import Task

ORACLE, MODEL, MESSAGES = "evaluation oracle", "sent model", "messages of a round"
MESSAGE_TRIALS = 300  # each trial trains all nodes
FPR = 0.01
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Roc:
    """Random guessing has an AUC of 0.5 and a TPR of 0.01."""

    auc: float
    tpr: float  # at a false positive rate of 1 %
    chance: float = 0.0  # half of the 95 % interval of the AUC of random guessing, for this number of attempts


@dataclass(frozen=True, slots=True)
class AuditFinding:
    attack: str
    control: str
    found: Roc
    at_most: Roc | None = None  # the bound for any attack
    epsilon: float | None = None
    reported: float | None = None  # the epsilon that the node itself reports, if the attacker's may differ
    accuracy: float | None = None  # accuracy of the models on test data
    answers: float | None = None  # answers per attempt


def with_privacy(settings: Settings, **changed: Any) -> Settings:
    if changed.get("dp") is False:
        changed["dp_correlated"] = False
    return settings.model_copy(update={"privacy": settings.privacy.model_copy(update=changed)})


def attack_oracle(settings: Settings, nodes: int, trials: int) -> Iterator[AuditFinding]:
    """Node 0 scores crafted models."""
    learner, task = _place(settings, nodes)
    members, others = _samples(task.train), _samples(task.test)
    for on in (False, True):
        chosen = with_privacy(settings, oracle=on, dp=False)
        came = asyncio.run(attack(chosen, learner, members, others, trials))
        spent = came.answers * settings.privacy.oracle_epsilon if on else None
        yield AuditFinding(
            ORACLE,
            "privacy.oracle" if on else "exact answers",
            roc(came.members, came.others),
            bound(spent) if spent is not None else None,
            epsilon=spent,
            answers=came.answers,
        )


def attack_model(settings: Settings, nodes: int, *, private: bool) -> AuditFinding:
    """A peer that receives the final model classifies samples with a low loss as members."""
    chosen = with_privacy(settings, oracle=False, dp=private)
    policy = load_policy(chosen.policy.name)
    plan = Plan(policy, configure(policy, chosen.policy.options))
    swarm = Simulation(chosen, plan, learners_of(chosen, nodes), nodes=nodes, journal=EventJournal(None, "rounds"))
    swarm.run()
    found, right, spent = [], [], []
    for node in swarm.world.nodes.values():
        inside, _ = node.learner.each(node.policy.model, "train")
        outside, accurate = node.learner.each(node.policy.model, "test")
        found.append(roc((-inside).tolist(), (-outside).tolist()))
        right.append(float(accurate.mean()))
        spent.append(node.learner.account.epsilon)
    chance = fmean(o.chance for o in found) / sqrt(len(found))
    mean = Roc(fmean(o.auc for o in found), fmean(o.tpr for o in found), chance)
    correlated = " correlated" if chosen.privacy.dp_correlated else ""
    control = f"privacy.dp{correlated}" if private else "plain training"
    return AuditFinding(MODEL, control, mean, epsilon=max(spent) if private else None, accuracy=fmean(right))


def _place(settings: Settings, nodes: int) -> tuple[Learner, Task]:
    from pfl_node.learning.build import learner_at
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import load_task

    place = Place(index=0, nodes=nodes, seed=settings.seed, node_id="victim")
    return learner_at(with_privacy(settings, dp=False), place), load_task(settings.task, place, settings.data)


def _samples(data: Any) -> list[Sample]:
    if not hasattr(getattr(data, "x", None), "numpy"):
        raise TaskError("an audit needs samples with one input, in memory: set data.memory = always")
    return [(x.numpy(), int(y)) for x, y in zip(data.x, data.y, strict=True)]


def audit(settings: Settings, nodes: int, trials: int) -> Iterator[AuditFinding]:
    """Private training is attacked only if Opacus is installed."""
    yield from attack_oracle(settings, nodes, trials)
    yield attack_model(settings, nodes, private=False)
    if not find_spec("opacus"):
        return
    yield attack_model(with_privacy(settings, dp_correlated=False), nodes, private=True)
    if settings.privacy.dp_correlated:
        yield attack_model(settings, nodes, private=True)
        yield from attack_messages(with_privacy(settings, dp=True), nodes, min(trials, MESSAGE_TRIALS))


def attack_messages(settings: Settings, nodes: int, trials: int) -> Iterator[AuditFinding]:
    """Attack one sample with the messages that observers of a round see. Epsilon is that of all rounds."""
    from pfl_node.learning.accountant import epsilon

    privacy, found = settings.privacy, MessageAttack(settings, nodes)
    few = privacy.dp_colluders
    assumed = Attacker(f"{few} neighbour{'s' * (few != 1)}, all others", neighbours=few, others=True)
    everybody = Attacker("all neighbours", neighbours=nodes)
    attackers = (ALONE, EAVESDROPPER, NEIGHBOUR, assumed, everybody)
    scores = found.scores(attackers, trials)
    rate = min(1.0, (settings.train.batch or 8) / found.samples)
    steps = (settings.rounds or 1) * (settings.train.steps or 1)
    reported = epsilon({DpStep(privacy.dp_noise, rate): steps}, privacy.dp_delta)
    for attacker in attackers:
        sigma = privacy.dp_noise * found.exchange.noise(attacker)[0]
        spent = epsilon({DpStep(sigma, rate): steps}, privacy.dp_delta)
        most = gaussian_bound(sigma)
        yield AuditFinding(
            MESSAGES, attacker.name, roc(*scores[attacker.name]), most, epsilon=spent, reported=reported
        )


# -- ROC -------------------------------------------------------------------------------------------------------


def roc(members: Sequence[float], others: Sequence[float]) -> Roc:
    """Higher scores mean "member"; ties count one half."""
    a, b = np.sort(np.asarray(members, float)), np.sort(np.asarray(others, float))
    below, upto = np.searchsorted(b, a, "left"), np.searchsorted(b, a, "right")
    auc = float((below + upto).mean() / 2 / len(b))
    return Roc(auc, _tpr(a, b), 2 * sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b))))


def _tpr(members: Scores, others: Scores) -> float:
    """Scores above the threshold are positive, and as many of those equal to it as the FPR allows."""
    allowed = FPR * len(others)
    threshold = others[-1 - int(allowed)] if allowed < len(others) else others[0]
    above, at = (others > threshold).sum(), (others == threshold).sum()
    share = min(1.0, (allowed - above) / at)
    return float((members > threshold).mean() + share * (members == threshold).mean())


def bound(epsilon: float) -> Roc:
    """The upper bound for any attack on epsilon-differentially private answers."""
    return Roc(exp(epsilon) / (1 + exp(epsilon)), min(1.0, exp(epsilon) * FPR, 1 - exp(-epsilon) * (1 - FPR)))


def gaussian_bound(sigma: float) -> Roc:
    """The optimal attack on one step with all samples in the batch and this much noise, in units of the clipped
    gradient."""
    normal = NormalDist()
    return Roc(normal.cdf(1 / (sigma * sqrt(2))), normal.cdf(1 / sigma + normal.inv_cdf(FPR)))
