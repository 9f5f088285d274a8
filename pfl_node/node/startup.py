"""Creates a node's place and policy, and checks that the task provides what the policy needs. No I/O."""

from __future__ import annotations

import random

from pfl_node.aggregate import WHOLE, limit
from pfl_node.errors import ConfigError, PolicyFailed, TaskError
from pfl_node.learning.task import Place
from pfl_node.model import Model
from pfl_node.node.ports import LearnerFacts, Plan, Store
from pfl_node.plugin import users_fault
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.seeds import seed_from
from pfl_node.settings import Settings
from pfl_node.settings.compress_type import NONE, Compression
from pfl_node.types import PeerId

HEAD_START = 3  # rounds; a swarm further ahead has started without this node, a nearer one may wait for it


def place_of(settings: Settings, store: Store) -> Place:
    """The index is None if neither the settings nor the store define one."""
    task = settings.task
    index = store.slot if task.index == "slot" else task.index
    return Place(index=index, nodes=task.nodes, seed=settings.seed, node_id=store.identity.id)


def fresh_seed(settings: Settings, me: PeerId, seed: int, *, common: bool = False) -> int:
    """With common initialisation all nodes of the run share the seed; otherwise each has its own."""
    own = () if common or settings.train.init == "common" else (me,)
    return seed_from(settings.seed, "fresh", *own, seed)


def check_lab(cls: type[Policy], settings: Settings, *, lab: bool) -> None:
    """Reject attacks and policies that need the true clusters, outside the lab."""
    if settings.attack.kind and not lab:
        raise ConfigError(
            "attack.kind makes nodes malicious: it works in `pfl-node sim`, `swarm` and `lab`, not in a daemon"
        )
    if cls.oracular and not lab:
        raise ConfigError(
            f"policy {settings.policy.name} needs the true clusters, which a daemon does not have: "
            "it is a baseline for `pfl-node sim` and `pfl-node swarm`"
        )


def check_correlated(cls: type[Policy], cfg: PolicyConfig, settings: Settings) -> None:
    """The noise of neighbours cancels only if they exchange whole models both ways and take the mean."""
    if not settings.privacy.dp_correlated:
        return
    if not settings.privacy.dp:
        raise ConfigError(
            "privacy.dp_correlated changes the noise of privacy.dp, which is off: set privacy.dp = true"
        )
    if not cls.pair_degree(cfg):
        raise ConfigError(
            f"privacy.dp_correlated does not work with policy {settings.policy.name} as configured: neighbours "
            "do not exchange whole models both ways; use dpsgd, or el with policy.graph = shared"
        )
    if (colluders := settings.privacy.dp_colluders) >= (degree := cls.pair_degree(cfg)):
        raise ConfigError(
            f"privacy.dp_colluders = {colluders} leaves no honest one of {degree} neighbours, so noise of pairs "
            "would only add to that of privacy.dp: raise the degree of the graph, lower privacy.dp_colluders, or "
            "leave out privacy.dp_correlated"
        )
    if settings.aggregate.rule != "mean":
        raise ConfigError(
            f"privacy.dp_correlated needs aggregate.rule = mean: {settings.aggregate.rule} does not cancel noise"
        )
    if settings.wire.compress != NONE:
        raise ConfigError(
            "privacy.dp_correlated cannot be combined with wire.compress: the noise of numbers that are not sent "
            "does not cancel"
        )


def compares_fragments(cls: type[Policy], settings: Settings) -> bool:
    """Whether the run's rule, which selects among whole models, would get fragments. Completed with mine, they
    differ from each other more than from mine, so that mine is selected."""
    sent = cls.fragments or Compression.parse(settings.wire.compress).kind == "fragments"
    return sent and settings.aggregate.rule in WHOLE


def check_fragments(cls: type[Policy], settings: Settings) -> None:
    if compares_fragments(cls, settings):
        name, rule = settings.policy.name, settings.aggregate.rule
        which = f"policy {name} sends" if cls.fragments else f"wire.compress = {settings.wire.compress} sends"
        raise ConfigError(
            f"aggregate.rule = {rule} compares whole models, and {which} fragments: use median, trimmed_mean or "
            f"clipping, or {'another policy' if cls.fragments else 'wire.compress = none'}"
        )


def check_gradients(cls: type[Policy], settings: Settings, learner: LearnerFacts) -> None:
    """A gradient covers only parameters that are sent: private ones and batch statistics would keep their
    initial values."""
    if not cls.only_gradients:
        return
    if stays := [entry.name for entry in learner.private_layout.entries if entry.trained]:
        raise ConfigError(
            f"policy {settings.policy.name} trains only parameters that are sent, and {stays[0]} of task "
            f"{settings.task.name} is private: leave out `private`, or use another policy"
        )
    if still := [entry.name for entry in learner.layout.entries if not entry.trained]:
        raise ConfigError(
            f"policy {settings.policy.name} moves along gradients, and {still[0]} of task {settings.task.name} "
            "has none: use a model without batch statistics (GroupNorm or LayerNorm), or another policy"
        )


def make_policy(plan: Plan, settings: Settings, me: PeerId, learner: LearnerFacts, model: Model) -> Policy:
    cls = plan.policy
    check_correlated(cls, plan.cfg, settings)
    check_fragments(cls, settings)
    if cls.oracular and learner.cluster is None:
        raise TaskError(
            f"policy {settings.policy.name} needs the true cluster, but task {settings.task.name} defines none"
        )
    if "predictions" in cls.takes and learner.predictions is None:
        raise TaskError(
            f"policy {settings.policy.name} needs auxiliary samples, but task {settings.task.name} has none: "
            "return `auxiliary` from the task or, for digits, --set task.auxiliary=0.5"
        )
    check_gradients(cls, settings, learner)
    try:
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
    except Exception as error:
        if fault := users_fault("policy", settings.policy.name, error, PolicyFailed):
            raise fault from error
        raise
    if missing := [name for name in cls.keeps if not hasattr(policy, name)]:
        raise ConfigError(f"policy {settings.policy.name} keeps {missing[0]!r}, which its __init__ does not set")
    policy.claim = limit(settings.aggregate.claim, exact=cls.exact)
    policy.discreet = settings.privacy.oracle or settings.privacy.dp
    policy.correlated = settings.privacy.dp_correlated
    return policy


def check_reports(name: str, reports: int, *, had_rounds: bool) -> None:
    """Called after main() has returned. Without a Report, the run has no result."""
    if had_rounds and not reports:
        raise ConfigError(
            f"policy {name}: its main() returned without reporting a round: "
            "end each round with `await Report(t, self.model)`"
        )


def entry_round(policy: Policy, swarm: int, own: int | None = None) -> int:
    """The first round of a node that joins a swarm whose median round is `swarm`. No single peer controls it.
    `own` is the round that this node would begin; None: the policy's current round."""
    own = policy.round if own is None else own
    if policy.rounds is not None:
        swarm = min(swarm, policy.rounds)
    return swarm if policy.lockstep and swarm > own + HEAD_START else own
