"""The whole audit: both attacks on the embedded digits, without the controls and with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pfl_node.lab.audit.oracle_attack import Sample, run_attack
from pfl_node.lab.audit.roc import Roc, bound, odds
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.learner_port import learners_of
from pfl_node.sim.simulation import Simulation
from pfl_node.sim.snapshot import Plan

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.task import Task

ORACLE, MODEL = "evaluation oracle", "sent model"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One line: an attack, on or off, and how well it does."""

    attack: str
    control: str
    found: Roc
    at_most: Roc | None = None  # whatever the attack
    epsilon: float | None = None
    accuracy: float | None = None  # of the models on test data
    answers: float | None = None  # that an attacker got

    def row(self) -> dict[str, Any]:
        return asdict(self)


def with_privacy(settings: Settings, **changed: Any) -> Settings:
    return settings.model_copy(update={"privacy": settings.privacy.model_copy(update=changed)})


def on_the_oracle(settings: Settings, nodes: int, trials: int) -> Iterator[AuditFinding]:
    """Crafted models are scored by node 0."""
    learner, task = _place(settings, nodes)
    members, others = _samples(task.train), _samples(task.test)
    for on in (False, True):
        chosen = with_privacy(settings, oracle=on, dp=False)
        came = run_attack(chosen, learner, members, others, trials)
        spent = came.answers * settings.privacy.oracle_epsilon if on else None
        yield AuditFinding(
            ORACLE,
            "privacy.oracle" if on else "exact answers",
            odds(came.members, came.others),
            bound(spent) if spent is not None else None,
            epsilon=spent,
            answers=came.answers,
        )


def on_the_model(settings: Settings, nodes: int, *, private: bool) -> AuditFinding:
    """Whoever gets a node's last model takes samples on which its loss is low for members."""
    chosen = with_privacy(settings, oracle=False, dp=private)
    policy = load_policy(chosen.policy.name)
    plan = Plan(policy, configure(policy, chosen.policy.options))
    swarm = Simulation(chosen, plan, learners_of(chosen, nodes), nodes=nodes, journal=EventJournal(None, "rounds"))
    swarm.run()
    found, right, spent = [], [], []
    for node in swarm.world.nodes.values():
        inside, _ = node.learner.each(node.policy.model, "train")
        outside, accurate = node.learner.each(node.policy.model, "test")
        found.append(odds((-inside).tolist(), (-outside).tolist()))
        right.append(float(accurate.mean()))
        spent.append(node.learner.account.epsilon)
    chance = fmean(o.chance for o in found) / sqrt(len(found))
    mean = Roc(fmean(o.auc for o in found), fmean(o.tpr for o in found), chance)
    control = "privacy.dp" if private else "plain training"
    return AuditFinding(MODEL, control, mean, epsilon=max(spent) if private else None, accuracy=fmean(right))


def _place(settings: Settings, nodes: int) -> tuple[Learner, Task]:
    from pfl_node.learning.build import learner_at
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import load_task

    place = Place(index=0, nodes=nodes, seed=settings.seed, node_id="victim")
    return learner_at(with_privacy(settings, dp=False), place), load_task(settings.task, place)


def _samples(data: Any) -> list[Sample]:
    return [(x.numpy(), int(y)) for x, y in zip(data.x, data.y, strict=True)]


def audited(settings: Settings, nodes: int, trials: int) -> Iterator[AuditFinding]:
    """All of it, one after the other. Without Opacus training stays plain."""
    yield from on_the_oracle(settings, nodes, trials)
    yield on_the_model(settings, nodes, private=False)
    if find_spec("opacus"):
        yield on_the_model(settings, nodes, private=True)
