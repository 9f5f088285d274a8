"""The Layout of an nn.Module: which tensors are sent, in which order, and where the head begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pfl_node.errors import LayoutMismatch, TaskError, nearest
from pfl_node.model import Entry, Layout, Model, Vector

Array = npt.NDArray[Any]
Head = str | Sequence[str] | None
EVERYTHING = "*"


def layout_of(module: nn.Module, head: Head = None) -> Layout:
    """Core parameters, core buffers, head parameters, head buffers, each in the order of the module.

    A tied parameter appears once, under its first name. Frozen parameters (requires_grad off) are grouped with the
    buffers. Non-persistent buffers are not sent.
    """
    prefixes = head_prefixes(module, head)
    parts: dict[tuple[bool, bool], list[Entry]] = {(h, t): [] for h in (False, True) for t in (True, False)}
    for name, tensor, trained in tensors_of(module):
        in_head = any(covers(p, name) for p in prefixes)
        parts[in_head, trained].append(Entry(name, tuple(tensor.shape), trained))
    core = parts[False, True] + parts[False, False]
    return Layout(tuple(core), tuple(parts[True, True] + parts[True, False]))


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Every tensor that is sent: name, tensor, and whether it is trained."""
    for name, p in module.named_parameters():
        if is_lazy(p):
            raise TaskError(
                f"the model's parameter {name!r} has no shape yet: call the lazy model once before use"
            )
        if p.is_complex():
            raise TaskError(f"the model's parameter {name!r} is {p.dtype}: only real numbers can be shared")
        yield name, p, p.requires_grad
    kept = module.state_dict(keep_vars=True).keys()
    for name, b in module.named_buffers():
        if name in kept:
            yield name, b, False


def head_prefixes(module: nn.Module, head: Head) -> tuple[str, ...]:
    """The given names, checked against the module; None: the last layer with parameters of its own."""
    if head is None:
        return (last_layer(module),)
    asked = (head,) if isinstance(head, str) else tuple(head)
    if not asked:
        raise TaskError('the head is empty: name a layer, or leave it out for the last one ("*": the whole model)')
    if EVERYTHING in asked:
        return ("",)
    tensors = [name for name, _, _ in tensors_of(module)]
    for prefix in asked:
        if not any(covers(prefix, name) for name in tensors):
            known = {".".join(name.split(".")[:n]) for name in tensors for n in range(1, name.count(".") + 2)}
            raise TaskError(f"the model has no {prefix!r} for the head: {nearest(prefix, known)}")
    return asked


def last_layer(module: nn.Module) -> str:
    """The name of the module with the last trained parameter; empty for a bare layer."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    if not names:
        raise TaskError("the model has no parameters to train")
    return names[-1].split("parametrizations.")[0].rpartition(".")[0]


def covers(prefix: str, name: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")


def pack(module: nn.Module, layout: Layout) -> Vector:
    """The module's tensors as one vector; integers and booleans become floats."""
    tensors = {name: t for name, t, _ in tensors_of(module)}
    if tensors.keys() != {e.name for e in layout.entries}:
        raise TaskError("the model's factory builds models of different shapes")
    vector = np.empty(layout.size, dtype=np.float32)
    for entry, span in layout.spans():
        tensor = tensors[entry.name].detach()
        if tuple(tensor.shape) != entry.shape:
            raise TaskError(f"the model's factory builds models of different shapes: {entry.name!r}")
        vector[span] = tensor.cpu().float().numpy().ravel()
    return vector


def unpack(model: Model, dtypes: Mapping[str, torch.dtype]) -> dict[str, Array]:
    """The named tensors in their shapes; integers and booleans are restored by rounding."""
    return {e.name: _back(model.vector[s].reshape(e.shape), dtypes[e.name]) for e, s in model.layout.spans()}


def _back(values: Array, dtype: torch.dtype) -> Array:
    if dtype.is_floating_point:
        return values.copy()
    return np.rint(values).astype(torch.empty(0, dtype=dtype).numpy().dtype)


def repack(tensors: Mapping[str, Array], layout: Layout) -> Model:
    names = [e.name for e in layout.entries]
    if unknown := [name for name in tensors if name not in names]:
        raise LayoutMismatch(f"the model has no tensor {unknown[0]!r}; {nearest(unknown[0], names)}")
    vector = np.empty(layout.size, dtype=np.float32)
    for entry, span in layout.spans():
        if entry.name not in tensors:
            raise LayoutMismatch(f"the tensor {entry.name!r} is missing")
        if tensors[entry.name].shape != entry.shape:
            found = tensors[entry.name].shape
            raise LayoutMismatch(f"the tensor {entry.name!r} has the shape {found}, the model's has {entry.shape}")
        vector[span] = tensors[entry.name].ravel()
    return Model(layout, vector)
