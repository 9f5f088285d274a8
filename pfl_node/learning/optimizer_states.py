"""The states of torch optimizers and schedulers as the plain values and tensors of `work.state`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def keep_states(state: dict[str, Any], optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
    for n, optimizer in enumerate(optimizers):
        whole = optimizer.state_dict()
        for number, values in whole["state"].items():
            state |= {f"optimizer{n}.{number}.{name}": value for name, value in values.items()}
        groups = [{k: v for k, v in g.items() if k != "params" and _plain(v)} for g in whole["param_groups"]]
        state[f"optimizer{n}.groups"] = groups
    for n, scheduler in enumerate(schedulers):
        state[f"scheduler{n}"] = {k: v for k, v in scheduler.state_dict().items() if _plain(v)}


def load_states(state: dict[str, Any], optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
    """Load the states into new optimizers for the same parameters."""
    for n, optimizer in enumerate(optimizers):
        prefix = f"optimizer{n}."
        if prefix + "groups" not in state:
            continue
        found: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            if key.startswith(prefix) and key != prefix + "groups":
                number, _, name = key.removeprefix(prefix).partition(".")
                found.setdefault(int(number), {})[name] = value.clone() if isinstance(value, Tensor) else value
        now = optimizer.state_dict()
        groups = [{**g, **kept} for g, kept in zip(now["param_groups"], state[prefix + "groups"], strict=True)]
        optimizer.load_state_dict({"state": found, "param_groups": groups})
    for n, scheduler in enumerate(schedulers):
        if f"scheduler{n}" in state:
            scheduler.load_state_dict({**scheduler.state_dict(), **state[f"scheduler{n}"]})


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
