"""A module whose tensors are views of one flat float32 tensor, so that loading or saving a model is one copy.

The flat tensor has the shared tensors, then the private ones. Frozen tensors are not in it: all workspaces of a
process share them. All nodes of a process with the same kind of module share workspaces (see `workspace_pool.py`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pfl_node.learning.layout import Placement, pack, tensors_of
from pfl_node.model import Layout, Model, Vector

Only = Literal["core", "head"] | None
_NormBase, _BatchNorm = nn.modules.batchnorm._NormBase, nn.modules.batchnorm._BatchNorm


class TrainedParameter(NamedTuple):
    """A trained parameter and its part."""

    param: nn.Parameter
    in_head: bool


class Slot(NamedTuple):
    """A buffer of the module and its view of the vector."""

    owner: nn.Module
    key: str
    view: Tensor  # view of the flat vector
    live: Tensor  # used by the module: the view, or a separate integer tensor
    in_head: bool


class Workspace:
    """Runs models in one module, one job at a time."""

    def __init__(self, module: nn.Module, placement: Placement, device: torch.device) -> None:
        self.layout, self.private = placement.shared, placement.private
        self._first = pack(module, self.private)
        self.module = in_float32(module, placement, device)
        size = self.layout.size + self.private.size
        self.flat = torch.zeros(size, device=device)
        self.grad = torch.zeros(size, device=device)
        pinned = device.type == "cuda" and torch.cuda.is_available()  # faster copies to the GPU
        self._home = self.flat if device.type == "cpu" else torch.zeros(size, pin_memory=pinned)
        self._trained: list[TrainedParameter] = []
        self._slots: list[Slot] = []
        self._adopt(self.layout, 0)
        self._adopt(self.private, self.layout.size)
        self.compiled: nn.Module | None = None  # the module after torch.compile
        self._stays = self._buffers_that_stay(placement.names)
        frozen = {name.rpartition(".")[0] for name in placement.frozen}
        norms = [(name, m) for name, m in module.named_modules() if isinstance(m, _NormBase)]
        stay = [m for name, m in norms if name in frozen and m not in self._owners]
        for norm in stay:
            keep_in_evaluation(norm)
        self.batch_norms = [m for _, m in norms if isinstance(m, _BatchNorm) and m not in stay]

    @property
    def _owners(self) -> set[nn.Module]:
        """The modules with buffers in the flat tensor."""
        return {slot.owner for slot in self._slots}

    def _adopt(self, layout: Layout, start: int) -> None:
        """Make every tensor of a layout a view of the flat one."""
        params, owners = dict(self.module.named_parameters()), dict(self.module.named_modules())
        for entry, place in layout.spans():
            span = slice(start + place.start, start + place.stop)
            view = self.flat[span].view(entry.shape)
            in_head = place.start >= layout.core_size
            if entry.name in params:
                param = params[entry.name]
                param.requires_grad_(False)
                param.data = view
                if entry.trained:
                    param.grad = self.grad[span].view(entry.shape)
                    self._trained.append(TrainedParameter(param, in_head))
            else:
                path, _, key = entry.name.rpartition(".")
                live = owners[path]._buffers[key]
                assert live is not None
                self._slots.append(
                    Slot(owners[path], key, view, view if live.is_floating_point() else live, in_head)
                )

    def _buffers_that_stay(self, placed: set[str]) -> list[tuple[Tensor, Tensor]]:
        """Non-persistent buffers and their initial values: a node must not see those of another node."""
        return [(b, b.clone()) for name, b in self.module.named_buffers() if name not in placed]

    def load(self, model: Model, private: Vector | None = None) -> None:
        """Load this model, in evaluation mode. Without a private part, the initial one of the module is used."""
        home, travels = self._home.numpy(), self.layout.size
        np.copyto(home[:travels], model.vector)
        np.copyto(home[travels:], self._first if private is None else private)
        if self._home is not self.flat:
            self.flat.copy_(self._home, non_blocking=True)
        for slot in self._slots:
            if slot.live is not slot.view:
                slot.live.copy_(slot.view.round())
            slot.owner._buffers[slot.key] = slot.live
        for buffer, first in self._stays:
            buffer.copy_(first)
        self.module.eval()

    def export(self) -> Vector:
        """A copy of the current model without its private part."""
        for slot in self._slots:
            now = slot.owner._buffers[slot.key]  # a module may have replaced the tensor
            if now is not None and now is not slot.view:
                slot.view.copy_(now.detach())
        if self._home is not self.flat:
            self._home.copy_(self.flat)
        return self._home.numpy()[: self.layout.size].copy()

    def export_private(self) -> Vector:
        """A copy of the private part at the time of the last `export`."""
        return self._home.numpy()[self.layout.size :].copy()

    def prepare(self, only: Only, *, lone_samples: bool = False) -> list[slice]:
        """Switch to training mode for a part (None: both); returns the slices of the flat tensors to optimize.

        Modules with buffers in the other part stay in evaluation mode, so that their statistics do not change; so
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
        return self.stretches(only)

    def stretches(self, only: Only) -> list[slice]:
        """The slices of the flat tensors to optimize; the shared ones come first."""
        start = self.layout.size
        private = [slice(start + p.start, start + p.stop) for p in stretches(self.private, only)]
        return stretches(self.layout, only) + private


def keep_in_evaluation(layer: nn.Module) -> None:
    """Also if a training loop of the task calls `train()`: its statistics belong to all nodes of the process."""
    layer.eval()
    layer.train = lambda mode=True: layer  # type: ignore[method-assign]  # noqa: ARG005


def in_float32(module: nn.Module, placement: Placement, device: torch.device) -> nn.Module:
    """The module on the device and in float32. Frozen tensors keep their type, unless the trained ones have
    another."""
    mixed = any(t.dtype != torch.float32 for _, t, trained in tensors_of(module) if trained)
    kept = set() if mixed else set(placement.frozen)
    frozen = {id(t) for name, t, _ in tensors_of(module) if name in kept}

    def convert(tensor: Tensor) -> Tensor:
        keep = id(tensor) in frozen or not tensor.is_floating_point()
        return tensor.to(device, None if keep else torch.float32)

    module._apply(convert)  # type: ignore[no-untyped-call]
    return module


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
