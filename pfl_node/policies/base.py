"""What every policy has. A policy is one algorithm seen from one node: plain coroutines that await steps.

It touches no network, no clock, no torch, no disk; chance comes from its own `rng`, time from `Sleep`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from math import isnan
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from pfl_node.model import Model
from pfl_node.types import Eval, Offer, Part, PeerId


class PolicyConfig(BaseModel):
    """The knobs of a policy; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Policy(ABC):
    """Entry points: `main`, and for push protocols `on_model`.

    `main` runs beside the handlers; the handlers (`on_model`, `on_quiet`) run one after the other. A switch
    between the two happens only at an `await`, so plain attributes need no lock. The run ends when `main`
    returns.
    """

    class Config(PolicyConfig):
        pass

    cfg: Any  # an instance of the class's own Config
    claim: float | None = None  # `aggregate.claim`, for those who put together what peers say without `Average`
    discreet: bool = False  # `privacy` is on: how others' models do on my data must not travel with my own
    keeps: ClassVar[tuple[str, ...]] = ()  # attributes that survive a restart, besides model, round and rng
    solitary: ClassVar[bool] = False  # needs no peers and does not wait for them
    takes: ClassVar[tuple[Part, ...]] = ("model",)  # what peers may push to it; anything else is refused
    serves: ClassVar[tuple[Part, ...]] = ("model", "core", "head", "predictions")  # what peers may fetch of mine
    oracular: ClassVar[bool] = False  # it is told its true cluster, so only a lab can run it
    lockstep: ClassVar[bool] = False  # rounds are the swarm's, not my own: a late node starts at the current one
    late: ClassVar[bool] = False  # its Gather also brings what came too late for an earlier round

    def __init__(
        self,
        *,
        me: PeerId,
        cfg: PolicyConfig,
        model: Model,
        rounds: int | None,
        seed: int,
        rng: random.Random,
        samples: int = 0,
        truth: int | None = None,
    ) -> None:
        self.me = me
        self.cfg = cfg
        self.model = model  # my personal model
        self.rounds = rounds  # None: until somebody stops the node
        self.seed = seed  # the run's: the same on every node
        self.rng = rng  # my own
        self.samples = samples  # that I train on
        self.truth = truth  # my true cluster; None unless the policy is oracular and a lab runs it
        self.round = 0  # the round I am in; a restarted or late node begins above zero

    @abstractmethod
    async def main(self) -> None:
        """The algorithm."""

    async def on_model(self, offer: Offer) -> None:
        """A model was pushed without a round. Not overridden: it waits in the inbox for a Receive."""

    async def on_quiet(self) -> None:
        """Nothing was pushed for `quiet_after` seconds; go on with less than you waited for."""

    @property
    def quiet_after(self) -> float | None:
        """Seconds; None: `on_quiet` is never called."""
        return None

    @property
    def more(self) -> bool:
        """Are there rounds left?"""
        return self.rounds is None or self.round < self.rounds

    def remaining(self) -> Iterator[int]:
        """The rounds left, keeping `self.round` up to date."""
        while self.more:
            yield self.round
            self.round += 1

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint holds; taken at a Report, when the state is whole."""
        kept = {name: _copied(getattr(self, name)) for name in self.keeps}
        return {"model": self.model, "round": self.round, "rng": self.rng.getstate(), "kept": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot; called before `main`. The round it was taken in is done."""
        self.model = state["model"]
        self.round = state["round"] + 1
        self.rng.setstate(state["rng"])
        for name in self.keeps:
            if name in state["kept"]:
                setattr(self, name, _copied(state["kept"][name]))

    @classmethod
    def pushes(cls) -> bool:
        """Does the inbox go to `on_model`?"""
        return cls.on_model is not Policy.on_model


def _copied(value: Any) -> Any:
    """Containers are copied, so that a snapshot does not change afterwards; models are immutable."""
    if isinstance(value, dict):
        same = copy(value)
        for key, item in value.items():
            same[key] = _copied(item)
        return same
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_copied(v) for v in value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(_copied(v) for v in value)
    return value


def by_loss(scores: Sequence[Eval]) -> list[int]:
    """The indices of the scores, lowest loss first; a loss that is not a number comes last."""
    return sorted(range(len(scores)), key=lambda i: (isnan(scores[i].loss), scores[i].loss))
