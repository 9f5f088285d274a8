"""The algorithms, by name, and the topologies they use.

Each policy is one file of at most 80 lines that follows its paper. A policy imports only the vocabulary: no
torch, no network, no clock, no disk. `base` has what all policies share; `topology` and
`edge_list` describe graphs. A new policy is a file and a line in POLICIES.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pfl_node import plugin
from pfl_node.errors import ConfigError, nearest
from pfl_node.policies.bandit import Bandit
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.policies.choco import Choco
from pfl_node.policies.dac import Dac
from pfl_node.policies.deprl import Deprl
from pfl_node.policies.dfca import Dfca
from pfl_node.policies.dfedalt import DFedAlt
from pfl_node.policies.dfedpgp import DFedPgp
from pfl_node.policies.ditto import Ditto
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.el import El
from pfl_node.policies.epsilon_greedy import EpsilonGreedy
from pfl_node.policies.facade import Facade
from pfl_node.policies.fedavg import FedAvg
from pfl_node.policies.feded import FedEd
from pfl_node.policies.fedfomo import FedFomo
from pfl_node.policies.fedprox import FedProx
from pfl_node.policies.ggc import Ggc
from pfl_node.policies.gossip import Gossip
from pfl_node.policies.gradient_tracking import GradientTracking
from pfl_node.policies.greedy import Greedy
from pfl_node.policies.idca import Idca
from pfl_node.policies.local import Local
from pfl_node.policies.mosaic import Mosaic
from pfl_node.policies.oracle import Oracle
from pfl_node.policies.pens import Pens
from pfl_node.policies.pens_pull import PensPull
from pfl_node.policies.random_pull import RandomPull
from pfl_node.policies.random_weighted import RandomWeighted
from pfl_node.policies.scaffold import Scaffold
from pfl_node.policies.sgp import Sgp

BESIDE = ("model", "core", "head")  # parts whose layout a vector beside the model may have
NUMBERS = (int, float, int | None, float | None)
POLICIES: dict[str, type[Policy]] = {
    "local": Local,
    "gossip": Gossip,
    "pens": Pens,
    "random": RandomPull,
    "greedy": Greedy,
    "epsilon_greedy": EpsilonGreedy,
    "random_weighted": RandomWeighted,
    "pens_pull": PensPull,
    "oracle": Oracle,
    "el": El,
    "mosaic": Mosaic,
    "facade": Facade,
    "idca": Idca,
    "dpsgd": Dpsgd,
    "choco": Choco,
    "gradient_tracking": GradientTracking,
    "scaffold": Scaffold,
    "dac": Dac,
    "deprl": Deprl,
    "dfedalt": DFedAlt,
    "ditto": Ditto,
    "sgp": Sgp,
    "dfedpgp": DFedPgp,
    "dfca": Dfca,
    "ggc": Ggc,
    "fedfomo": FedFomo,
    "bandit": Bandit,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "feded": FedEd,
}


def policies_in(name: str) -> list[str]:
    """The policies in a list such as `pens,el`; `all` is the whole table."""
    words = [word.strip() for word in name.split(",") if word.strip()]
    return list(dict.fromkeys(one for word in words for one in (POLICIES if word == "all" else [word])))


def knobs_of(name: str) -> set[str]:
    """The knobs of these policies."""
    return {knob for one in policies_in(name) for knob in load_policy(one).Config.model_fields}


def load_policy(name: str) -> type[Policy]:
    """A policy of the table, a file (`path/file.py:Class`) or a module (`package.module:Class`)."""
    if name in POLICIES:
        return POLICIES[name]
    if name.endswith(".py"):
        raise ConfigError(f"policy {name}: its class is missing; write {name}:CLASS")
    if ":" not in name:
        raise ConfigError(f"unknown policy {name!r}: {nearest(name, POLICIES)}")
    cls = plugin.load("policy", name, ConfigError)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise ConfigError(f"policy {name}: not a subclass of pfl_node.policies.base.Policy")
    if inspect.isabstract(cls):
        raise ConfigError(f"policy {name}: has no main()")
    _check_declared(name, cls)
    for method, given in (("main", ""), ("on_model", ", offer"), ("on_quiet", "")):
        if not inspect.iscoroutinefunction(getattr(cls, method)):
            raise ConfigError(
                f"policy {name}: its {method}() is not a coroutine; write async def {method}(self{given})"
            )
    return cls


def _check_declared(name: str, cls: type[Policy]) -> None:
    """What a class declares about itself is read long after its file."""
    for attribute in ("keeps", "takes", "serves"):
        if isinstance(value := getattr(cls, attribute), str):
            raise ConfigError(
                f"policy {name}: {attribute} = {value!r} is a text; write {attribute} = ({value!r},)"
            )
    wrong = not isinstance(cls.vectors, Mapping) or any(part not in BESIDE for part in cls.vectors.values())
    if wrong:
        raise ConfigError(
            f"policy {name}: vectors = {cls.vectors!r} is not a dict of names and parts ({', '.join(BESIDE)}), "
            'such as {"c": "model"}'
        )


def configure(cls: type[Policy], options: Mapping[str, Any]) -> PolicyConfig:
    """Validate the knobs of a policy; an error is one line that names the knob and its range."""
    for name, field in cls.Config.model_fields.items():
        if isinstance(options.get(name), bool) and field.annotation in NUMBERS:  # pydantic would accept true as 1
            raise ConfigError(f"policy.{name} = {options[name]!r}: must be a number ({field.description})")
    try:
        return cls.Config.model_validate(dict(options))
    except ValidationError as error:
        complaints = [_complaint(cls, row) for row in error.errors(include_url=False, include_context=False)]
        raise ConfigError("; ".join(complaints)) from None


def _complaint(cls: type[Policy], row: Mapping[str, Any]) -> str:
    fields = cls.Config.model_fields
    key = ".".join(map(str, row["loc"]))
    if row["type"] == "extra_forbidden":
        hint = nearest(key, fields) if fields else "it has no knobs"
        return f"policy.{key} is not a knob of {cls.__name__}: {hint}"
    said = row["msg"].removeprefix("Value error, ")
    if not key:
        return f"policy ({cls.__name__}): {said}"
    about = fields[row["loc"][0]].description
    return f"policy.{key} = {row['input']!r}: {said[:1].lower()}{said[1:]}" + (f" ({about})" if about else "")
