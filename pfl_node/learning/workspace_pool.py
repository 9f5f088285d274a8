"""Shared workspaces: nodes with equal modules borrow from one pool, so that fifty nodes need one or two copies."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import ReferenceType, WeakSet

import torch
from torch import nn

from pfl_node.learning.eval_cache import EvalCache
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Layout

PLAIN = (int, float, str, bytes, set, frozenset, FunctionType, BuiltinFunctionType, torch.dtype, torch.device)


class WorkspacePool:
    """The workspaces for one kind of module. Urgent work during a job gets another workspace."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module  # as the factory built it; never run
        self.layout = layout
        self.device = device
        self.memory = EvalCache()
        self._free: list[Workspace] = []

    @contextmanager
    def borrow(self) -> Iterator[Workspace]:
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = Workspace(copy.deepcopy(self.module), self.layout, self.device)
        try:
            yield workspace
        finally:
            self._free.append(workspace)


_pools: dict[tuple[str, torch.device], WeakSet[WorkspacePool]] = {}  # alive while a learner uses them
_lock = threading.Lock()


def pool_for(module: nn.Module, layout: Layout, device: torch.device) -> WorkspacePool:
    """The pool of this process for modules like this one."""
    with _lock:
        pools = _pools.setdefault((layout.digest, device), WeakSet())
        for pool in pools:
            if alike(pool.module, module):
                return pool
        pool = WorkspacePool(module, layout, device)
        pools.add(pool)
        return pool


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
    """What a module has besides its layout: attributes and non-persistent buffers."""
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
