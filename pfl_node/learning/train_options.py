"""The options of one training, from the call, the settings, the task and the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pfl_node.errors import TaskError, nearest
from pfl_node.settings import TrainSettings

BUILT_IN: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.05,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch": 8,
    "epochs": 1.0,
}


@dataclass(frozen=True, slots=True)
class Options:
    """Fully resolved. The duration is `steps`, or else `epochs`."""

    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    batch: int
    epochs: float
    steps: int | None
    prox: float = 0.0


def number_of_batches(samples: int, options: Options) -> int:
    """Of one training."""
    if options.steps is not None:
        return options.steps
    return max(1, round(options.epochs * -(-samples // min(options.batch, samples))))


def resolve(levels: Sequence[Mapping[str, Any]], prox: float = 0.0) -> Options:
    """The first level that has an option decides. `steps` and `epochs` are one option; `steps` wins."""
    found = {key: next(lv[key] for lv in levels if lv.get(key) is not None) for key in BUILT_IN}
    long = next(lv for lv in levels if lv.get("steps") is not None or lv.get("epochs") is not None)
    return Options(**found, steps=long.get("steps"), prox=prox)


def check_defaults(task: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the task's own training options like the settings."""
    for key in defaults:
        if key not in TrainSettings.model_fields or key == "init":
            known = TrainSettings.model_fields.keys() - {"init"}
            raise TaskError(f"task {task}: train_defaults has no option {key!r}; {nearest(key, known)}")
    try:
        return TrainSettings(**defaults).model_dump(exclude_none=True, exclude={"init"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"task {task}: train_defaults, {where} = {first['input']!r}: {first['msg']}") from None
