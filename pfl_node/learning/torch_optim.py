"""The optimizers of torch.optim by name, on a module's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, nearest
from pfl_node.learning.optim import Again
from pfl_node.learning.train_options import FLAT, KNOBS, Options
from pfl_node.settings.sections import PrivacySettings

NEEDS_SPARSE = "SparseAdam"  # sparse gradients do not fit into the flat gradient
SEVERAL_LOSSES = "LBFGS"  # calls the loss several times per step; its state is a history of steps


def classes() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizer classes, by name in lower case."""
    found = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    return {name.lower(): kind for name, kind in found.items() if name != NEEDS_SPARSE}


def class_of(name: str) -> type[torch.optim.Optimizer]:
    known = classes()
    if name.lower() == NEEDS_SPARSE.lower():
        raise ConfigError("train.optimizer = SparseAdam needs sparse gradients, which nodes do not use: try Adam")
    if name.lower() not in known:
        names = [*FLAT, *(kind.__name__ for kind in known.values() if kind.__name__ not in FLAT.values())]
        raise ConfigError(f"train.optimizer: torch.optim has no {name!r}; {nearest(name, names)}")
    return known[name.lower()]


def checked(options: Options, privacy: PrivacySettings | None = None) -> Options:
    """Raises ConfigError for an unknown optimizer or argument and for an impossible combination."""
    if privacy is not None and privacy.dp:
        check_private(options)
        if privacy.dp_correlated:
            check_linear(options)
    if options.arguments is None:
        return options
    kind = class_of(options.optimizer)
    takes = inspect.signature(kind).parameters.keys() - {"params", "self"}
    for name in options.arguments:
        if name not in takes:
            where = f"train.{name}" if name in KNOBS else "train.optimizer_options"
            raise ConfigError(f"{where}: {kind.__name__} has no option {name!r}; {nearest(name, takes)}")
    try:
        kind([torch.nn.Parameter(torch.zeros(1, 1))], **options.arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"train.optimizer_options: {kind.__name__}: {error}") from None
    if kind.__name__ == SEVERAL_LOSSES and (
        options.keep or options.accumulate > 1 or options.precision == "fp16" or options.clip
    ):
        raise ConfigError(
            "train.optimizer = LBFGS repeats the batch: leave out keep_optimizer, accumulate, clip and fp16"
        )
    return options


def check_private(options: Options) -> None:
    """DP-SGD needs the exact gradient of every sample of one batch."""
    wrong = {
        "accumulate": options.accumulate > 1,
        "precision": options.precision != "fp32",
        "compile": options.compile,
        "optimizer": options.optimizer.lower() == SEVERAL_LOSSES.lower(),
    }
    for name in (name for name, is_set in wrong.items() if is_set):
        raise ConfigError(f"privacy.dp cannot be combined with train.{name} = {getattr(options, name)}")


def check_linear(options: Options) -> None:
    """The noise of neighbours cancels if every node makes the same linear steps."""
    if options.steps is None:
        raise ConfigError(
            "privacy.dp_correlated needs train.steps: noise cancels only between nodes with equally many steps"
        )
    if options.optimizer.lower() != "sgd":
        raise ConfigError(
            f"privacy.dp_correlated needs train.optimizer = sgd: {options.optimizer} rescales the noise"
        )
    if options.clip is not None:
        raise ConfigError("privacy.dp_correlated cannot be combined with train.clip, which rescales the noise")


class TorchRule:
    """An optimizer of torch.optim as an `Optimizer`. The parameters' gradients must exist and stay in place."""

    def __init__(self, options: Options, params: Sequence[nn.Parameter]) -> None:
        self._torch = class_of(options.optimizer)(params, **options.arguments or {})
        self._repeats = type(self._torch).__name__ == SEVERAL_LOSSES
        self._base = [group["lr"] for group in self._torch.param_groups]

    def step(self, again: Again | None = None) -> None:
        if self._repeats:
            assert again is not None
            self._torch.step(again)  # type: ignore[arg-type]
        else:
            self._torch.step()

    def scale_lr(self, factor: float) -> None:
        for group, base in zip(self._torch.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    def state(self) -> dict[str, Any]:
        state: dict[int, dict[str, Any]] = self._torch.state_dict()["state"]
        return {f"{n}.{name}": value for n, kept in state.items() for name, value in kept.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        found: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            number, _, name = key.partition(".")
            found.setdefault(int(number), {})[name] = value.clone() if isinstance(value, Tensor) else value
        self._torch.load_state_dict({"state": found, "param_groups": self._torch.state_dict()["param_groups"]})
