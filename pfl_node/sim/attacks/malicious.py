"""Which nodes of a run are malicious, and what they do: flip the labels of their training data, and change the
models in their policy's steps before these reach the driver."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from pfl_node.errors import ConfigError, TaskError
from pfl_node.model import Model, PartialModel
from pfl_node.node.ports import HONEST, Role
from pfl_node.seeds import seed_from
from pfl_node.settings import Settings
from pfl_node.settings.sections import AttackSettings, GuardSettings
from pfl_node.sim.attacks import perturb
from pfl_node.sim.intercepted_policy import InterceptedPolicy, P, intercepted
from pfl_node.steps import Fetch, Gather, Publish, Receive, Report, Send, Step, Train
from pfl_node.types import Eval, Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.learning.task import Place, Task

HIGH = 1e6  # above any metric of a task


def malicious_places(attack: AttackSettings, nodes: int, seed: int) -> frozenset[int]:
    """One random place in each of `share * nodes` equal ranges: tasks give adjacent places to the same cluster."""
    if not attack.kind:
        return frozenset()
    if attack.nodes:
        if (largest := max(attack.nodes)) >= nodes:
            raise ConfigError(f"attack.nodes: there is no place {largest} among {nodes} nodes")
        return frozenset(attack.nodes)
    count = round(attack.share * nodes)
    chance = Random(f"{seed}/attack")
    edges = [i * nodes // count for i in range(count + 1)] if count else []
    return frozenset(chance.randrange(low, high) for low, high in pairwise(edges))


def is_malicious(settings: Settings, index: int | None, nodes: int | None) -> bool:
    if not settings.attack.kind or nodes is None or index is None:
        return False
    return index in malicious_places(settings.attack, nodes, settings.seed)


class SharedModels:
    """The last model of each sender that any colluding node has received."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, PeerId], Model] = {}

    def add(self, sender: PeerId, model: Model) -> None:
        self.models[model.layout.digest, sender] = model

    def of(self, like: Model) -> list[Model]:
        """The models of the same layout, sorted by sender so that the order of arrival does not matter."""
        digest = like.layout.digest
        return [self.models[key] for key in sorted(self.models) if key[0] == digest]


def poisoned(task: Task, settings: Settings, place: Place) -> Task:
    """Change label y of C classes to C - 1 - y if the place is malicious; otherwise return the task unchanged."""
    if "label_flip" not in settings.attack.kind or not is_malicious(settings, place.index, place.nodes):
        return task
    if not hasattr(task.train, "y"):
        raise TaskError(
            f"attack.kind = label_flip: task {task.name} reads labels lazily; set data.memory = always"
        )
    return replace(task, train=task.train._replace(y=_flipped(task.name, task.train.y)))


def _flipped(name: str, y: Any) -> Any:
    if not str(getattr(y, "dtype", "")).removeprefix("torch.").startswith(("int", "uint")):
        raise TaskError(f"attack.kind = label_flip needs integer labels, which task {name} does not have")
    return y.max() - y


@dataclass(frozen=True, slots=True)
class AttackPlan:
    attack: AttackSettings
    nodes: int  # number of nodes in the run
    malicious: int  # how many of them are malicious
    pool: SharedModels | None = None  # shared by colluding nodes

    def has(self, kind: str) -> bool:
        return kind in self.attack.kind

    @property
    def z(self) -> float:
        return self.attack.strength or perturb.z_max(self.nodes, self.malicious)


class Malicious(InterceptedPolicy):
    """The base of malicious policies. They follow their algorithm, or peers would not use their models."""

    plan: AttackPlan

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.heard: dict[PeerId, Model] = {}  # the last model of each peer
        self.old: list[Model] = []  # own models, oldest first
        self._last: tuple[Model, int, Model] | None = None  # model, round, and the perturbed model

    def intercept(self, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        """Replace the model of a step, and store the models in its answer."""
        if isinstance(step, Train) and self.plan.has("free_rider"):
            return step.model  # skips training
        if isinstance(step, (Send, Publish, Report)) and self.round >= self.plan.attack.start:
            model = self._perturbed(step.model)
            return (yield step if model is step.model else replace(step, model=model))
        answer = yield step
        if isinstance(step, (Gather, Receive, Fetch)):
            for offer in answer:
                self.store(offer)
        return answer

    def handler_begins(self, offer: Offer | None) -> None:
        if offer:
            self.store(offer)

    def store(self, offer: Offer) -> None:
        if offer.model.layout.part == "predictions":  # a checkpoint cannot contain them
            return
        model = offer.model
        if isinstance(model, PartialModel):
            model = model.over(self.model.of(model.layout.part))
        self.heard[offer.sender] = model
        if self.plan.pool:
            self.plan.pool.add(offer.sender, model)

    def _perturbed(self, model: Model) -> Model:
        """All receivers of a model in a round get the same perturbed model."""
        if self._last is None or self._last[0] is not model or self._last[1] != self.round:
            self._last = (model, self.round, self._perturb_numbers(model))
        return self._last[2]

    def _perturb_numbers(self, model: Model) -> Model:
        """Attacks compute with whole models. Of a partial one, the same numbers are sent."""
        if not isinstance(model, PartialModel):
            return self._perturb(model)
        whole = self._perturb(model.over(self.model.of(model.layout.part)))
        return whole.sparse(model.indices, same=model.same)

    def _perturb(self, model: Model) -> Model:
        attack, malicious = self.plan.attack, model
        for kind in attack.kind:
            match kind:
                case "sign_flip":
                    malicious = perturb.scaled(malicious, -(attack.strength or 1.0))
                case "scaled":
                    malicious = perturb.scaled(malicious, attack.strength or 10.0)
                case "noise":
                    malicious = perturb.noisy(
                        malicious, attack.strength or 1.0, seed_from(self.seed, self.me, self.round)
                    )
                case "nan":
                    malicious = perturb.with_nan(malicious)
                case "alie":
                    malicious = self._alie(malicious)
                case "replay":
                    malicious = self._replayed(malicious)
                case "lying_scores":
                    malicious = perturb.without_novelty(malicious)
                case "free_rider":
                    malicious = next(
                        (m for m in reversed(self.heard.values()) if m.layout == malicious.layout), malicious
                    )
        return malicious

    def _alie(self, model: Model) -> Model:
        if self.plan.pool:
            self.plan.pool.add(self.me, model)
            known = self.plan.pool.of(model)
        else:
            known = [model, *(m for _, m in sorted(self.heard.items()) if m.layout == model.layout)]
        return perturb.alie(known, self.plan.z) if len(known) >= perturb.MIN_MODELS else model

    def _replayed(self, model: Model) -> Model:
        if model.layout.part == "predictions":
            return model
        self.old = [*self.old, model][-self.plan.attack.lag - 1 :]
        return next(m for m in self.old if m.layout == model.layout)


def malicious(cls: type[P], plan: AttackPlan) -> type[P]:
    """A malicious subclass of a policy, with its name and its state."""
    return intercepted(cls, Malicious, plan=plan, keeps=(*cls.keeps, "heard", "old"))


def role_of(settings: Settings, index: int | None, nodes: int | None, pool: SharedModels | None = None) -> Role:
    """The role of the node at a place of a run: honest or, by the settings, malicious."""
    if nodes is None or not is_malicious(settings, index, nodes):
        return HONEST
    count = len(malicious_places(settings.attack, nodes, settings.seed))
    plan = AttackPlan(settings.attack, nodes, count, pool)
    return Role(
        lambda cls: malicious(cls, plan),
        without_quarantine,
        reported_score(settings.attack),
        poisoned,
        honest=False,
    )


def without_quarantine(guard: GuardSettings) -> GuardSettings:
    """A malicious node quarantines no one, because quarantined peers would not receive its models."""
    return guard.model_copy(update={"quarantine": 0.0})


def reported_score(attack: AttackSettings) -> Callable[[Eval], Eval]:
    """With lying_scores, a node reports a perfect score for every model, so that it is selected."""
    if "lying_scores" not in attack.kind:
        return lambda score: score
    return lambda score: Eval(0.0, 1.0, score.samples, score=None if score.score is None else HIGH)
