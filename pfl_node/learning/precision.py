"""Mixed precision: the dtype of forward passes, and loss scaling for fp16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


class LossScaler:
    """Scales the loss, so that small fp16 gradients do not become zero. If gradients overflow, the step is skipped
    and the scale is halved."""

    def __init__(self, device: torch.device, params: Sequence[nn.Parameter]) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self.param_groups = [{"params": list(params)}]  # read by GradScaler, which treats this as an optimizer
        self._step: Callable[[], None] = lambda: None

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def unscale(self) -> None:
        """Divide the gradients by the scale, before they are clipped."""
        self._scaler.unscale_(self)  # type: ignore[arg-type]

    def apply(self, step: Callable[[], None]) -> None:
        """Call `step` unless a gradient overflowed."""
        self._step = step
        self._scaler.step(self)  # type: ignore[arg-type]
        self._scaler.update()

    def step(self) -> None:
        self._step()

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scaler.state_dict()
        return {key: state[key] for key in ("scale", "_growth_tracker")}

    def load(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict({**self._scaler.state_dict(), **state})
