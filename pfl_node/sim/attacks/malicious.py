"""A malicious node: its policy is wrapped, and the models in its steps are changed before the driver sees them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from pfl_node.model import Model
from pfl_node.node.ports import HONEST, Role
from pfl_node.policies.base import Policy
from pfl_node.seeds import seed_from
from pfl_node.settings import Settings
from pfl_node.settings.sections import AttackSettings, GuardSettings
from pfl_node.sim.attacks import perturb
from pfl_node.sim.attacks.colluders import SharedModels, bad_places, is_bad
from pfl_node.sim.attacks.label_flip import poisoned
from pfl_node.steps import Fetch, Gather, Publish, Receive, Report, Send, Step, Train, relay
from pfl_node.types import Eval, Offer, PeerId

P = TypeVar("P", bound=Policy)


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """What a bad node is to do."""

    attack: AttackSettings
    nodes: int  # in the run
    bad: int  # of them
    pool: SharedModels | None = None  # shared by those who collude

    def has(self, kind: str) -> bool:
        return kind in self.attack.kind

    @property
    def z(self) -> float:
        return self.attack.strength or perturb.z_max(self.nodes, self.bad)


class Malicious(Policy):
    """What every malicious policy has. It follows its algorithm, or else nobody would want its models."""

    plot: AttackPlan

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.heard: dict[PeerId, Model] = {}  # the last model of each peer
        self.old: list[Model] = []  # my own models, the oldest first
        self._bends: tuple[Model, int, Model] | None = None  # the last one, in which round, and what it became

    def bend(self, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        """What the driver gets to see instead, and what is overheard of its answer."""
        if isinstance(step, Train) and self.plot.has("free_rider"):
            return step.model  # it leaves the training to others
        if isinstance(step, (Send, Publish, Report)) and self.round >= self.plot.attack.start:
            model = self._bent(step.model)
            return (yield step if model is step.model else replace(step, model=model))
        answer = yield step
        if isinstance(step, (Gather, Receive, Fetch)):
            for offer in answer:
                self.note(offer)
        return answer

    def note(self, offer: Offer) -> None:
        if offer.model.layout.part == "predictions":  # of these a checkpoint holds none
            return
        self.heard[offer.sender] = offer.model
        if self.plot.pool:
            self.plot.pool.heard(offer.sender, offer.model)

    def _bent(self, model: Model) -> Model:
        """The same for all who get this model in this round."""
        if self._bends is None or self._bends[0] is not model or self._bends[1] != self.round:
            self._bends = (model, self.round, self._spoil(model))
        return self._bends[2]

    def _spoil(self, model: Model) -> Model:
        attack, malicious = self.plot.attack, model
        for kind in attack.kind:
            match kind:
                case "sign_flip":
                    malicious = perturb.times(malicious, -(attack.strength or 1.0))
                case "scaled":
                    malicious = perturb.times(malicious, attack.strength or 10.0)
                case "noise":
                    malicious = perturb.noisy(
                        malicious, attack.strength or 1.0, seed_from(self.seed, self.me, self.round)
                    )
                case "nan":
                    malicious = perturb.not_a_number(malicious)
                case "alie":
                    malicious = self._little(malicious)
                case "replay":
                    malicious = self._replayed(malicious)
                case "lying_scores":
                    malicious = perturb.all_known(malicious)
                case "free_rider":
                    malicious = next(
                        (m for m in reversed(self.heard.values()) if m.layout == malicious.layout), malicious
                    )
        return malicious

    def _little(self, model: Model) -> Model:
        if self.plot.pool:
            self.plot.pool.heard(self.me, model)
            known = self.plot.pool.of(model)
        else:
            known = [model, *(m for _, m in sorted(self.heard.items()) if m.layout == model.layout)]
        return perturb.alie(known, self.plot.z) if len(known) >= perturb.LEAST else model

    def _replayed(self, model: Model) -> Model:
        if model.layout.part == "predictions":
            return model
        self.old = [*self.old, model][-self.plot.attack.lag - 1 :]
        return next(m for m in self.old if m.layout == model.layout)


def malicious(cls: type[P], plot: AttackPlan) -> type[P]:
    """The policy's class, malicious; its name and its state are as they were, and some more."""

    async def main(self: Any) -> None:
        await relay(cls.main(self), self.bend)

    async def on_model(self: Any, offer: Offer) -> None:
        self.note(offer)
        await relay(cls.on_model(self, offer), self.bend)

    async def on_quiet(self: Any) -> None:
        await relay(cls.on_quiet(self), self.bend)

    body: dict[str, Any] = {
        "plot": plot,
        "main": main,
        "on_quiet": on_quiet,
        "keeps": (*cls.keeps, "heard", "old"),
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
    }
    if cls.pushes():
        body["on_model"] = on_model
    return cast(type[P], type(cls.__name__, (Malicious, cls), body))


def role_of(settings: Settings, index: int | None, nodes: int | None, pool: SharedModels | None = None) -> Role:
    """The role of the node at a place of a run: honest, or what the settings' attack says."""
    if nodes is None or not is_bad(settings, index, nodes):
        return HONEST
    plot = AttackPlan(settings.attack, nodes, len(bad_places(settings.attack, nodes, settings.seed)), pool)
    return Role(lambda cls: malicious(cls, plot), lenient, liar(settings.attack), poisoned, honest=False)


def lenient(guard: GuardSettings) -> GuardSettings:
    """The guard of a bad node. It keeps nobody away: whom it quarantined would not get its models any more."""
    return guard.model_copy(update={"quarantine": 0.0})


def liar(attack: AttackSettings) -> Callable[[Eval], Eval]:
    """What a bad node says about a model it was asked to score: that it is perfect, so as to be chosen."""
    if "lying_scores" not in attack.kind:
        return lambda score: score
    return lambda score: Eval(0.0, 1.0, score.samples)
