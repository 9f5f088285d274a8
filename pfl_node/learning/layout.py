"""Decides which tensors of an nn.Module are sent, in which order, where the head begins, and which stay on the
node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from pfl_node.errors import LayoutMismatch, TaskError, nearest
from pfl_node.model import Entry, Layout, Model, Vector

Array = npt.NDArray[Any]
Head = str | Sequence[str] | None
Globs = str | Sequence[str]
Where = Literal["shared", "private", "frozen"]
EVERYTHING = "*"
LIMIT = 1 << 24  # integers below it are exact in float32


@dataclass(frozen=True)
class Placement:
    """The place of each tensor: `shared` ones are sent; `private` ones stay on the node and may change; `frozen`
    ones are the same on all nodes and never change, and their digest is part of the shared layout."""

    shared: Layout
    private: Layout
    frozen: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        return {*self.frozen, *(e.name for e in (*self.shared.entries, *self.private.entries))}


def placement_of(module: nn.Module, head: Head = None, *, private: Globs = (), shared: Globs = ()) -> Placement:
    """By default trained parameters and batch statistics are shared, frozen parameters (requires_grad off) are
    frozen, and other buffers are private, also the integer counters of batch statistics: an encoding would round
    them. `private` and `shared` are globs over names of tensors and modules.

    A tied parameter appears once, under its first name. The statistics of a batch normalisation whose parameters
    are all frozen are frozen, too. Non-persistent buffers are in none of them: every job begins with their initial
    values.
    """
    where = places(module, private, shared)
    parameters = [name for name, _, trained in tensors_of(module) if trained]
    travels = [name for name in parameters if where[name] == "shared"]
    if parameters and not travels and not shared:
        raise TaskError("`private` covers every trained parameter of the model: no parameter is left to share")
    prefixes = head_prefixes(module, head, travels or parameters)
    frozen = tuple(name for name, place in where.items() if place == "frozen")
    return Placement(
        Layout(*_entries(module, where, "shared", prefixes), frozen=digest_of(module, frozen)),
        Layout(*_entries(module, where, "private", prefixes)),
        frozen,
    )


def layout_of(module: nn.Module, head: Head = None) -> Layout:
    """The shared tensors: core parameters and buffers, then head parameters and buffers, in the order of the
    module."""
    return placement_of(module, head).shared


def _entries(
    module: nn.Module, where: Mapping[str, Where], place: Where, prefixes: Sequence[str]
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    parts: dict[tuple[bool, bool], list[Entry]] = {(h, t): [] for h in (False, True) for t in (True, False)}
    for name, tensor, trained in tensors_of(module):
        if where[name] == place:
            in_head = any(covers(p, name) for p in prefixes)
            parts[in_head, trained].append(Entry(name, tuple(tensor.shape), trained))
    return tuple(parts[False, True] + parts[False, False]), tuple(parts[True, True] + parts[True, False])


def places(module: nn.Module, private: Globs, shared: Globs) -> dict[str, Where]:
    """The place of each tensor, by name."""
    stays, travels = matching(module, private, "private"), matching(module, shared, "shared")
    if both := sorted(stays & travels):
        raise TaskError(f"{both[0]!r} is both in `private` and in `shared`")
    params, statistics = dict(module.named_parameters()), _batch_statistics(module)
    found: dict[str, Where] = {}
    for name, _, trained in tensors_of(module):
        if name in stays:
            found[name] = "private"
        elif trained or name in travels:
            found[name] = "shared"
        elif name in params:
            found[name] = "frozen"
        else:
            found[name] = statistics.get(name, "private")
    return found


def _batch_statistics(module: nn.Module) -> dict[str, Where]:
    """The buffers of normalisation layers. Those of a frozen layer are frozen: it stays in evaluation mode."""
    found: dict[str, Where] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, _NormBase):
            frozen = is_frozen(layer)
            for key, buffer in layer._buffers.items():
                shared = buffer is not None and buffer.is_floating_point()
                found[f"{path}.{key}" if path else key] = "frozen" if frozen else "shared" if shared else "private"
    return found


def counters_in(module: nn.Module, layout: Layout) -> npt.NDArray[np.intp]:
    """The places of the counters of batch statistics, which have no effect on a model's outputs."""
    counters = {name for name, place in _batch_statistics(module).items() if place == "private"}
    spans = [np.arange(span.start, span.stop) for entry, span in layout.spans() if entry.name in counters]
    return np.concatenate([*spans, np.empty(0, np.intp)]).astype(np.intp)


def is_frozen(layer: nn.Module) -> bool:
    """Whether a layer has parameters and none of them is trained."""
    params = list(layer.parameters())
    return bool(params) and not any(p.requires_grad for p in params)


def matching(module: nn.Module, globs: Globs, option: str) -> set[str]:
    """The tensors that these globs match, by their own name or by that of a module around them. `*.bn*` also finds
    a `bn1` at the top. A tied parameter is found by each of its names."""
    first = {id(p): name for name, p in module.named_parameters()}
    names = {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    names |= {name: name for name, _, _ in tensors_of(module)}
    modules = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    found: set[str] = set()
    for glob in (globs,) if isinstance(globs, str) else globs:
        hits = [name for name in (*modules, *names) if fnmatchcase(name, glob) or fnmatchcase("." + name, glob)]
        here = {names[name] for name in names if any(covers(hit, name) for hit in hits)}
        if not here:
            raise TaskError(f"the model has no {glob!r} for `{option}`; {_similar(glob, (*modules, *names))}")
        found |= here
    return found


def _similar(glob: str, names: Sequence[str]) -> str:
    """The hint for a glob without a match: large models have too many names to list."""
    word = glob.strip("*.").replace("*", "")
    parts = sorted({part for name in names for part in (name, name.rpartition(".")[2])})
    close = get_close_matches(word, parts, n=3)
    if close := [name for name in close if not any(name.startswith(other + ".") for other in close)]:
        return f"did you mean {' or '.join(map(repr, close))}?"
    top = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return f"it has {', '.join(top[:8])}{' …' if len(top) > 8 else ''}"


def digest_of(module: nn.Module, names: Sequence[str]) -> str:
    """A digest of the values of frozen tensors; empty if there are none."""
    if not names:
        return ""
    tensors, seen = {name: t for name, t, _ in tensors_of(module)}, xxhash.xxh3_128()
    for name in names:
        tensor = tensors[name].detach().cpu()
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        seen.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return seen.hexdigest()


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Every parameter and persistent buffer: name, tensor, and whether it is trained."""
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


def head_prefixes(module: nn.Module, head: Head, travels: Sequence[str]) -> tuple[str, ...]:
    """The given names, checked against the module; None: the last layer with shared parameters."""
    if head is None:
        return (last_layer(travels),)
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


def last_layer(trained: Sequence[str]) -> str:
    """The name of the module with the last trained parameter; empty for a bare layer. The parts of a
    parametrization or of an adapter (PEFT) are one layer."""
    if not trained:
        raise TaskError(
            "the model has no parameters to train: it has none, or requires_grad is off for all of them"
        )
    return re.split(r"parametrizations\.|lora_", trained[-1])[0].rpartition(".")[0]


def covers(prefix: str, name: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")


def pack(module: nn.Module, layout: Layout) -> Vector:
    """The module's tensors of a layout as one vector; integers and booleans become floats."""
    tensors = {name: t for name, t, _ in tensors_of(module)}
    vector = np.empty(layout.size, dtype=np.float32)
    for entry, span in layout.spans():
        if entry.name not in tensors or tuple(tensors[entry.name].shape) != entry.shape:
            raise TaskError(f"the model's factory builds models of different shapes: {entry.name!r}")
        tensor = tensors[entry.name].detach().cpu()
        vector[span] = tensor.float().numpy().ravel()
        if not tensor.is_floating_point() and (np.abs(vector[span]) >= LIMIT).any():
            raise TaskError(f"the buffer {entry.name!r} has integers from 2^24: register it as non-persistent")
    return vector


def unpack(model: Model, dtypes: Mapping[str, torch.dtype]) -> dict[str, Array]:
    """The named tensors in their shapes; integers and booleans are restored by rounding."""
    return {e.name: _back(model.vector[s].reshape(e.shape), dtypes[e.name]) for e, s in model.layout.spans()}


def _back(values: Array, dtype: torch.dtype) -> Array:
    if dtype.is_floating_point:
        return values.copy()
    whole = np.rint(values).astype(torch.empty(0, dtype=dtype).numpy().dtype)
    return np.asarray(whole)  # numpy makes a scalar of a single number


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
