"""Shared workspaces: nodes with equal modules borrow from one pool, so that fifty nodes need one or two copies.

Frozen tensors with equal values exist once per process, even if the modules around them are not alike.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import ReferenceType, WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn

from pfl_node.learning.eval_cache import EvalCache
from pfl_node.learning.layout import Placement, tensors_of
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Layout

PLAIN = (int, float, str, bytes, set, frozenset, FunctionType, BuiltinFunctionType, torch.dtype, torch.device)


class WorkspacePool:
    """The workspaces for one kind of module. Urgent work during a job gets another workspace."""

    def __init__(self, module: nn.Module, placement: Placement, device: torch.device) -> None:
        self.module = module  # as the factory built it; it never runs
        self.placement = placement
        self.device = device
        self._frozen = share_frozen(module, placement, device)
        self.memory = EvalCache()
        self._free: list[Workspace] = []

    @property
    def layout(self) -> Layout:
        """What travels."""
        return self.placement.shared

    @contextmanager
    def borrow(self) -> Iterator[Workspace]:
        try:
            workspace = self._free.pop()
        except IndexError:
            same = {id(t): t for name, t, _ in tensors_of(self.module) if name in self._frozen.tensors}
            workspace = Workspace(copy.deepcopy(self.module, same), self.placement, self.device)
        try:
            yield workspace
        finally:
            self._free.append(workspace)


class FrozenTensors:
    """The frozen tensors of a module, by name."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors


_pools: dict[tuple[str, str, torch.device], WeakSet[WorkspacePool]] = {}  # alive while a learner uses them
_frozen: WeakValueDictionary[tuple[str, torch.device], FrozenTensors] = WeakValueDictionary()
_lock = threading.Lock()


def pool_for(module: nn.Module, placement: Placement, device: torch.device) -> WorkspacePool:
    """The pool of this process for modules like this one."""
    with _lock:
        key = (placement.shared.digest, placement.private.digest, device)
        pools = _pools.setdefault(key, WeakSet())
        for pool in pools:
            if alike(pool.module, module):
                return pool
        pool = WorkspacePool(module, placement, device)
        pools.add(pool)
        return pool


def share_frozen(module: nn.Module, placement: Placement, device: torch.device) -> FrozenTensors:
    """Let the module use the frozen tensors of this process that have the same values; they live as long as the
    returned object."""
    if not placement.frozen:
        return FrozenTensors({})
    key = (placement.shared.frozen, device)
    known = _frozen.get(key)
    if known is None:
        tensors = {name: t for name, t, _ in tensors_of(module)}
        known = FrozenTensors({name: tensors[name].detach().to(device) for name in placement.frozen})
        _frozen[key] = known
    params, owners = dict(module.named_parameters()), dict(module.named_modules())
    for name, tensor in known.tensors.items():
        if name in params:
            params[name].data = tensor
        else:
            path, _, key_in_owner = name.rpartition(".")
            owners[path]._buffers[key_in_owner] = tensor
    return known


def alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules compute the same with equal parameters and buffers; False when in doubt."""
    left, right = dict(a.named_modules()), dict(b.named_modules())
    return (
        list(left) == list(right)
        and _ties(a) == _ties(b)
        and all(
            type(x) is type(y) and _same(_shape_of(x), _shape_of(y))
            for x, y in zip(left.values(), right.values(), strict=True)
        )
    )


def _ties(module: nn.Module) -> dict[str, str]:
    """For each parameter, the first name of the same (tied) parameter."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(p), name) for name, p in module.named_parameters(remove_duplicate=False)}


def _shape_of(module: nn.Module) -> dict[str, Any]:
    """The state of a module besides its layout: attributes and non-persistent buffers."""
    apart = {"_parameters", "_modules", "_buffers", "training"}
    home = {name: module._buffers.get(name) for name in sorted(module._non_persistent_buffers_set)}
    return {key: value for key, value in vars(module).items() if key not in apart} | {"_buffers": home}


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if a is b or isinstance(a, nn.Parameter | ReferenceType):  # an RNN has lists of its parameters
        return True
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, PLAIN) and bool(a == b)
