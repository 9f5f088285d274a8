"""The base class of policies. A policy is one algorithm as seen by one node: coroutines that await steps.

It does no I/O and reads no clock; random numbers come from its own `rng`, time from `Sleep`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from pfl_node.model import Model
from pfl_node.types import Offer, Part, PeerId


class PolicyConfig(BaseModel):
    """The knobs of a policy; unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Policy(ABC):
    """Entry points: `main`, and for push protocols `on_model`.

    `main` runs concurrently with the handlers; the handlers (`on_model`, `on_quiet`) run one at a time. Control
    switches only at an `await`, so plain attributes need no lock. The run ends when `main` returns.
    """

    class Config(PolicyConfig):
        pass

    cfg: Any  # an instance of the class's own Config
    claim: float | None = None  # limit of claimed sample counts, as a multiple of the median; None: no limit
    stops_after: int | None = None  # the last round, if the node stops early (`train.patience`)
    discreet: bool = False  # `privacy` is on: do not send scores of other models on my data
    correlated: bool = False  # `privacy.dp_correlated` is on: name the round's neighbours in Train
    keeps: ClassVar[tuple[str, ...]] = ()  # attributes that are checkpointed, besides model, round and rng
    vectors: ClassVar[Mapping[str, Part]] = {}  # the vectors that every message has beside its model, by name
    solitary: ClassVar[bool] = False  # needs no peers
    takes: ClassVar[tuple[Part, ...]] = ("model",)  # parts that peers may push
    serves: ClassVar[tuple[Part, ...]] = ("model", "core", "head", "predictions")  # parts that peers may fetch
    asks: ClassVar[bool] = True  # awaits Ask, so this node scores models for its peers
    oracular: ClassVar[bool] = False  # gets its true cluster, so only a lab can run it
    only_gradients: ClassVar[bool] = False  # awaits Gradient and never Train: private parameters are not trained
    exact: ClassVar[bool] = False  # claimed sample counts are unlimited, unless `aggregate.claim` is a number
    lockstep: ClassVar[bool] = False  # all nodes share the rounds: a late node starts at the current one
    pulls: ClassVar[bool] = False  # fetches in every round although it is lockstep
    fragments: ClassVar[bool] = False  # sends fragments of its model, which Krum cannot compare
    late: ClassVar[bool] = False  # its Gather also returns models that arrived too late for an earlier round

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
        self.rounds = rounds  # None: until the node is stopped
        self.seed = seed  # seed of the run: the same on every node
        self.rng = rng  # my own generator
        self.samples = samples  # number of my training samples
        self.truth = truth  # my true cluster; None unless the policy is oracular
        self.round = 0  # current round; a restarted or late node begins above zero

    @abstractmethod
    async def main(self) -> None:
        """The algorithm."""

    async def on_model(self, offer: Offer) -> None:
        """Called with a model that was pushed without a round. If not overridden, models wait in the inbox for
        Receive."""

    async def on_quiet(self) -> None:
        """Called after `quiet_after` seconds without a pushed model; continue with fewer models."""

    @property
    def quiet_after(self) -> float | None:
        """Seconds; None: `on_quiet` is never called."""
        return None

    @property
    def more(self) -> bool:
        """Whether rounds are left."""
        return self.more_after(self.round - 1)

    def more_after(self, round: int) -> bool:
        """Whether rounds are left after this one."""
        if self.stops_after is not None and round >= self.stops_after:
            return False
        return self.rounds is None or round + 1 < self.rounds

    def remaining(self) -> Iterator[int]:
        """The remaining rounds; keeps `self.round` up to date."""
        while self.more:
            yield self.round
            self.round += 1

    def snapshot(self) -> dict[str, Any]:
        """The content of a checkpoint; taken at a Report, when the state is consistent."""
        kept = {name: deepcopy(getattr(self, name)) for name in self.keeps}
        return {"model": self.model, "round": self.round, "rng": self.rng.getstate(), "kept": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the round of a snapshot; called before `main`."""
        self.model = state["model"]
        self.round = state["round"] + 1
        self.rng.setstate(state["rng"])
        for name in self.keeps:
            if name in state["kept"]:
                setattr(self, name, deepcopy(state["kept"][name]))

    @classmethod
    def scores_for_peers(cls, cfg: PolicyConfig) -> bool:
        """Whether a node with this policy serves EvaluateModel."""
        return cls.asks and getattr(cfg, "scored", "theirs") == "theirs"

    @classmethod
    def pair_degree(cls, cfg: PolicyConfig) -> int:  # noqa: ARG003
        """The usual number of neighbours with which a node exchanges whole models both ways after a Train that
        names them as partners; 0: none, so their noise cannot cancel."""
        return 0

    @classmethod
    def pushes(cls) -> bool:
        """Whether pushed models go to `on_model`."""
        return cls.on_model is not Policy.on_model
