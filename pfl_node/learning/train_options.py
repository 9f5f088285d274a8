"""The options of one training, from the call, the settings, the task and the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from pfl_node.errors import ConfigError, TaskError, nearest
from pfl_node.learning.lr_schedule import Schedule
from pfl_node.learning.task import Task
from pfl_node.settings import TrainSettings

BUILT_IN: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.05,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch": 8,
    "epochs": 1.0,
}
FLAT = {"sgd": "SGD", "adam": "Adam"}  # implemented in `optim.py`, and their names in torch.optim
KNOBS = ("lr", "momentum", "weight_decay")  # options of every optimizer
NODE_SETTINGS = {"init", "patience", "lookahead"}  # settings of the node, not of a training
Levels = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """Fully resolved. The duration is `steps`, or else `epochs`."""

    optimizer: str  # sgd, adam, or a name of torch.optim if there are `arguments`
    lr: float
    momentum: float
    weight_decay: float
    batch: int
    epochs: float
    steps: int | None
    prox: float = 0.0
    arguments: Mapping[str, Any] | None = None  # arguments of the class in torch.optim
    keep: bool = False
    schedule: Schedule | None = None
    clip: float | None = None
    accumulate: int = 1
    precision: str = "fp32"
    compile: bool = False


def plain_sgd(options: Options) -> Options:
    """One step -lr (gradient + weight_decay * parameters) for every batch. The weight decay stays, because it is a
    part of the objective; without clipping, a step is linear in the gradient."""
    alone: dict[str, Any] = {"momentum": 0.0, "arguments": None, "keep": False, "schedule": None, "clip": None}
    return replace(options, optimizer="sgd", accumulate=1, **alone)


def levels_of(task: Task, settings: TrainSettings) -> Levels:
    """The settings, the task's own options and the defaults."""
    given = settings.model_dump(exclude_none=True, exclude=NODE_SETTINGS)
    return (given, check_defaults(task.name, task.train_defaults), BUILT_IN)


def number_of_batches(samples: int, options: Options) -> int:
    """The number of batches of one training."""
    if options.steps is not None:
        return options.steps
    return max(1, round(options.epochs * -(-samples // min(options.batch, samples))))


def resolve(levels: Levels, prox: float = 0.0, rounds: int | None = None) -> Options:
    """The first level that has an option decides. `steps` and `epochs` are one option; `steps` wins. `rounds` is
    the length of the run."""
    found = {key: next(lv[key] for lv in levels if lv.get(key) is not None) for key in BUILT_IN}
    long = next(lv for lv in levels if lv.get("steps") is not None or lv.get("epochs") is not None)
    more = {
        "arguments": arguments(levels, found),
        "keep": _first(levels, "keep_optimizer", False),
        "schedule": schedule(levels, rounds),
        "clip": _first(levels, "clip", None),
        "accumulate": _first(levels, "accumulate", 1),
        "precision": _first(levels, "precision", "fp32"),
        "compile": _first(levels, "compile", False),
    }
    return Options(**found, **more, steps=long.get("steps"), prox=prox)


def arguments(levels: Levels, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of an optimizer of torch.optim; None: sgd or adam without further options.

    A level that names no optimizer, below the level that names this one, is meant for another optimizer."""
    named = next(n for n, lv in enumerate(levels) if lv.get("optimizer") is not None)
    above = levels[: named + 1]
    further = _first(above, "optimizer_options", None)
    if (name := found["optimizer"].lower()) in FLAT:
        if not further:
            return None
        return {k: found[k] for k in KNOBS if k != "momentum" or name == "sgd"} | dict(further)
    given = {k: v for k in KNOBS if (v := _first(above, k, None)) is not None}
    return given | dict(further or {})


def schedule(levels: Levels, rounds: int | None) -> Schedule | None:
    shape, warmup = _first(levels, "schedule", "constant"), _first(levels, "warmup", 0.0)
    if shape == "constant" and not warmup:
        return None
    length = _first(levels, "schedule_rounds", rounds)
    if shape == "cosine" and length is None:
        raise ConfigError("train.schedule = cosine needs its length: set --rounds or train.schedule_rounds")
    return Schedule(
        shape=shape,
        rounds=length,
        warmup=warmup,
        every=_first(levels, "schedule_every", 10),
        factor=_first(levels, "schedule_factor", 0.0 if shape == "cosine" else 0.1),
    )


def _first(levels: Levels, key: str, otherwise: Any) -> Any:
    return next((lv[key] for lv in levels if lv.get(key) is not None), otherwise)


def check_defaults(task: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the task's own training options like the settings."""
    for key in defaults:
        if key not in TrainSettings.model_fields or key in NODE_SETTINGS:
            known = TrainSettings.model_fields.keys() - NODE_SETTINGS
            raise TaskError(f"task {task}: train_defaults has no option {key!r}; {nearest(key, known)}")
    try:
        return TrainSettings(**defaults).model_dump(exclude_none=True, exclude=NODE_SETTINGS)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"task {task}: train_defaults, {where} = {first['input']!r}: {first['msg']}") from None
