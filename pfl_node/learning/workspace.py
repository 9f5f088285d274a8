"""A module whose tensors are views of one flat float32 tensor, so that loading or saving a model is one copy.

All nodes of a process with the same kind of module share workspaces (see `workspace_pool.py`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pfl_node.model import Layout, Model, Vector

Only = Literal["core", "head"] | None
_BatchNorm = nn.modules.batchnorm._BatchNorm


class Trained(NamedTuple):
    """A trained parameter and its part."""

    param: nn.Parameter
    in_head: bool


class Slot(NamedTuple):
    """A buffer of the module and its view of the vector."""

    owner: nn.Module
    key: str
    view: Tensor  # of the vector
    live: Tensor  # used by the module: the view, or a separate integer tensor
    in_head: bool


class Workspace:
    """Runs models in one module, one job at a time."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module.to(device, torch.float32)
        self.layout = layout
        self.flat = torch.zeros(layout.size, device=device)
        self.grad = torch.zeros(layout.size, device=device)
        self._home = self.flat if device.type == "cpu" else torch.zeros(layout.size)
        self._trained: list[Trained] = []
        self._slots: list[Slot] = []
        self._adopt()
        self._stays = self._buffers_that_stay()
        self.compiled: nn.Module | None = None  # the module after torch.compile
        self.batch_norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]

    def _adopt(self) -> None:
        """Make every tensor that is sent a view of the flat one."""
        params, owners = dict(self.module.named_parameters()), dict(self.module.named_modules())
        for entry, span in self.layout.spans():
            view = self.flat[span].view(entry.shape)
            in_head = span.start >= self.layout.core_size
            if entry.name in params:
                param = params[entry.name]
                param.requires_grad_(False)
                param.data = view
                if entry.trained:
                    param.grad = self.grad[span].view(entry.shape)
                    self._trained.append(Trained(param, in_head))
            else:
                path, _, key = entry.name.rpartition(".")
                live = owners[path]._buffers[key]
                assert live is not None
                self._slots.append(
                    Slot(owners[path], key, view, view if live.is_floating_point() else live, in_head)
                )

    def _buffers_that_stay(self) -> list[tuple[Tensor, Tensor]]:
        """Non-persistent buffers and their initial values: nodes must not see each other's."""
        travels = {e.name for e in self.layout.entries}
        return [(b, b.clone()) for name, b in self.module.named_buffers() if name not in travels]

    def load(self, model: Model) -> None:
        """Load this model, in evaluation mode."""
        np.copyto(self._home.numpy(), model.vector)
        if self._home is not self.flat:
            self.flat.copy_(self._home)
        for slot in self._slots:
            if slot.live is not slot.view:
                slot.live.copy_(slot.view.round())
            slot.owner._buffers[slot.key] = slot.live
        for buffer, first in self._stays:
            buffer.copy_(first)
        self.module.eval()

    def export(self) -> Vector:
        """A copy of the current model."""
        for slot in self._slots:
            now = slot.owner._buffers[slot.key]  # a module may have replaced the tensor
            if now is not None and now is not slot.view:
                slot.view.copy_(now.detach())
        if self._home is not self.flat:
            self._home.copy_(self.flat)
        return self._home.numpy().copy()

    def prepare(self, only: Only, *, lone_samples: bool = False) -> list[slice]:
        """Switch to training mode for a part (None: both); returns the slices of the flat tensors to optimize.

        Modules with buffers in the frozen part stay in evaluation mode, so that their statistics do not change; so
        does batch normalisation if it would see single samples.
        """
        self.module.train()
        for slot in self._slots:
            if only is not None and slot.in_head != (only == "head"):
                slot.owner.training = False  # not its submodules
        for norm in self.batch_norms if lone_samples else ():
            norm.eval()
        for param, in_head in self._trained:
            param.requires_grad_(only is None or in_head == (only == "head"))
        return stretches(self.layout, only)


def stretches(layout: Layout, only: Only) -> list[slice]:
    """The slices of the trained numbers of a part: at most two, because buffers may lie between."""
    core = sum(e.size for e in layout.core_entries if e.trained)
    head = sum(e.size for e in layout.head_entries if e.trained)
    start = layout.core_size
    pieces = [] if only == "head" else [slice(0, core)]
    pieces += [] if only == "core" else [slice(start, start + head)]
    pieces = [p for p in pieces if p.stop > p.start]
    if len(pieces) == 2 and pieces[0].stop == pieces[1].start:
        return [slice(0, pieces[1].stop)]
    return pieces
