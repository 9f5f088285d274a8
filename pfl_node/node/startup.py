"""How a node starts: its place, its policy and first model, and whether the task has what they need. No I/O."""

from __future__ import annotations

import random

from pfl_node.aggregate import limit
from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning.task import Place
from pfl_node.model import Model
from pfl_node.node.ports import LearnerFacts, Plan, Store
from pfl_node.policies.base import Policy
from pfl_node.seeds import seed_from
from pfl_node.settings import Settings
from pfl_node.types import PeerId

HEAD_START = 3  # rounds; a swarm that is further than this began without me, a nearer one may be waiting for me


def place_of(settings: Settings, store: Store) -> Place:
    """A node's own; its index is None when nobody said."""
    task = settings.task
    index = store.slot if task.index == "slot" else task.index
    return Place(index=index, nodes=task.nodes, seed=settings.seed, node_id=store.identity.id)


def fresh_seed(settings: Settings, me: PeerId, seed: int, *, common: bool = False) -> int:
    """Common initialisation: the same on every node of the run; independent: my own."""
    own = () if common or settings.train.init == "common" else (me,)
    return seed_from(settings.seed, "fresh", *own, seed)


def check_lab(cls: type[Policy], settings: Settings, *, lab: bool) -> None:
    """What only a lab knows no daemon can be told, and what only a lab may do none does."""
    if settings.attack.kind and not lab:
        raise ConfigError(
            "attack.kind makes nodes malicious, which no daemon is: it is for `pfl-node sim`, `swarm` and `lab`"
        )
    if cls.oracular and not lab:
        raise ConfigError(
            f"policy {settings.policy.name} is told the true clusters, which no daemon knows: "
            "it runs in `pfl-node sim` and `pfl-node swarm`, as a yardstick for the others"
        )


def make_policy(plan: Plan, settings: Settings, me: PeerId, learner: LearnerFacts, model: Model) -> Policy:
    """A new policy, at round 0."""
    cls = plan.policy
    if cls.oracular and learner.cluster is None:
        raise TaskError(
            f"policy {settings.policy.name} learns with the true cluster, but task {settings.task.name} tells none"
        )
    if "predictions" in cls.takes and learner.predictions is None:
        raise TaskError(
            f"policy {settings.policy.name} needs auxiliary samples, and task {settings.task.name} gives none: "
            "let it return `auxiliary`, or for digits --set task.auxiliary=0.5"
        )
    policy = cls(
        me=me,
        cfg=plan.cfg,
        model=model,
        rounds=settings.rounds,
        seed=settings.seed,
        rng=random.Random(f"{settings.seed}/policy/{me}"),
        samples=learner.samples,
        truth=learner.cluster if cls.oracular else None,
    )
    policy.claim = limit(settings.aggregate.claim, exact=cls.exact)
    policy.discreet = settings.privacy.oracle or settings.privacy.dp
    return policy


def check_reports(name: str, reports: int, *, had_rounds: bool) -> None:
    """Its main has returned. One that told nothing has learnt nothing, as far as anybody can see."""
    if had_rounds and not reports:
        raise ConfigError(
            f"policy {name}: its main() returned and has reported no round: "
            "end each round with `await Report(t, self.model)`"
        )


def entry_round(policy: Policy, swarm: int) -> int:
    """Where a policy begins when half of the others have begun that round: in lockstep it goes on there."""
    if policy.rounds is not None:
        swarm = min(swarm, policy.rounds)
    return swarm if policy.lockstep and swarm > policy.round + HEAD_START else policy.round
