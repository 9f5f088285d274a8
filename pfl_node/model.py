"""A model: one flat float32 vector and a shared Layout. Core and head are slices of the vector. A node also has a
LocalState, which never travels. Does not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pfl_node.types import Part

Vector = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int32]
Array = npt.NDArray[Any]
HALF = 16  # characters of half a digest


@dataclass(frozen=True, slots=True)
class Entry:
    """One named tensor of the model. Buffers (such as BatchNorm's statistics) are sent but not trained."""

    name: str
    shape: tuple[int, ...]
    trained: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The order of the tensors in the vector: core entries first, then head entries."""

    core_entries: tuple[Entry, ...]
    head_entries: tuple[Entry, ...]
    part: Part = "model"
    whole: Layout | None = None  # of a part: the layout of the whole model
    frozen: str = ""  # the digest of the parameters that all nodes must share but never exchange

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.core_entries + self.head_entries

    @cached_property
    def core_size(self) -> int:
        return sum(e.size for e in self.core_entries)

    @cached_property
    def size(self) -> int:
        return sum(e.size for e in self.entries)

    @property
    def nbytes(self) -> int:
        return 4 * self.size

    @cached_property
    def digest(self) -> str:
        """Two models can be combined if and only if their digests are equal. With frozen parameters, each of the
        two halves of the digest says what differs."""
        rows = [[self.part]] + [
            [kind, e.name, *e.shape, e.trained]
            for kind, entries in (("core", self.core_entries), ("head", self.head_entries))
            for e in entries
        ]
        tensors = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        return tensors[:HALF] + self.frozen[:HALF] if self.frozen else tensors[: 2 * HALF]

    def difference(self, digest: str) -> str:
        """Why a model with this digest does not fit."""
        if digest != self.digest and digest[:HALF] == self.digest[:HALF]:
            return "frozen parameters differ: another base model"
        return f"another layout: {digest[:8]}, here {self.digest[:8]}"

    @cached_property
    def core(self) -> Layout:
        return Layout(self.core_entries, (), "core", self, self.frozen)

    @cached_property
    def head(self) -> Layout:
        return Layout((), self.head_entries, "head", self, self.frozen)

    def of(self, part: Part) -> Layout:
        if part in ("core", "head"):
            return self.core if part == "core" else self.head
        if part != self.part:
            raise LayoutMismatch(f"a {self.part} has no {part}")
        return self

    def spans(self) -> Iterator[tuple[Entry, slice]]:
        """Each entry with its slice of the vector."""
        start = 0
        for entry in self.entries:
            yield entry, slice(start, start + entry.size)
            start += entry.size

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Where the stretches of the vector end. Trained tensors in a row are one stretch, and each buffer is one:
        its numbers may be much larger."""
        spans = [(entry.trained, span.stop) for entry, span in self.spans() if entry.size]
        inner = [end for (trained, end), (follows, _) in pairwise(spans) if not (trained and follows)]
        return (*inner, self.size) if self.size else ()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.digest == other.digest


class Model:
    """An immutable value, which nodes and threads may share. `source`: the received model that it was made from,
    whose sender answers for it."""

    __slots__ = ("layout", "source", "vector")

    layout: Layout
    vector: Vector
    source: Model | None

    def __init__(self, layout: Layout, vector: Vector, source: Model | None = None) -> None:
        if vector.dtype != np.float32 or vector.ndim != 1 or vector.size != layout.size:
            raise LayoutMismatch(
                f"the layout holds {layout.size} float32 numbers, the vector is {vector.dtype}{vector.shape}"
            )
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "vector", _read_only(vector))
        object.__setattr__(self, "source", source)

    def __deepcopy__(self, memo: object) -> Model:
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a model is immutable: cannot set {name}")

    @property
    def core(self) -> Model:
        return Model(self.layout.core, self.vector[: self.layout.core_size], self.source)

    @property
    def head(self) -> Model:
        return Model(self.layout.head, self.vector[self.layout.core_size :], self.source)

    def of(self, part: Part) -> Model:
        if part in ("core", "head"):
            return self.core if part == "core" else self.head
        self.layout.of(part)  # raises LayoutMismatch
        return self

    def __add__(self, head: Model) -> Model:
        """core + head: the whole model."""
        mine, other = self.layout, head.layout
        if mine.part != "core" or other.part != "head" or mine.whole is None or mine.whole != other.whole:
            raise LayoutMismatch(f"cannot join a {mine.part} and a {other.part} into one model")
        if isinstance(self, PartialModel) or isinstance(head, PartialModel):
            return _joined(self, head, mine.whole)
        return Model(mine.whole, np.concatenate((self.vector, head.vector)))

    def plus(self, other: Model, times: float = 1.0) -> Model:
        """self + times * other, such as a step along a gradient."""
        if other.layout is not self.layout and other.layout != self.layout:
            raise LayoutMismatch(f"cannot add {other!r} to {self!r}: they have different layouts")
        return Model(self.layout, self.vector + np.float32(times) * other.vector)

    def trained_only(self) -> Model:
        """The same with zeros for buffers, as in a gradient: of the difference of two models, what training
        changed."""
        vector = self.vector.copy()
        for entry, span in self.layout.spans():
            if not entry.trained:
                vector[span] = 0
        return Model(self.layout, vector)

    @property
    def numbers(self) -> Vector:
        """Those that are known: of a model all, of a partial model only some."""
        return self.vector

    def over(self, base: Model) -> Model:
        """A complete model: numbers that are not known are those of `base`."""
        self._check_same_layout(base)
        return self

    def placed(self, layout: Layout) -> Model:
        """The same numbers with an equal layout, such as the receiver's own."""
        return Model(layout, self.vector)

    def sparse(self, indices: npt.ArrayLike, *, same: bool = True) -> PartialModel:
        """Only the numbers at these places. See `PartialModel.same`."""
        places = _places(indices)
        if places.size and not 0 <= places[0] <= places[-1] < self.layout.size:
            raise LayoutMismatch(f"the model has {self.layout.size} numbers, and a place is beyond them")
        return PartialModel(self.layout, places.astype(np.int32), self.vector[places], same=same)

    def fragment(self, *which: int, of: int) -> PartialModel:
        """Only these slices, counted from 0, of so many equal ones."""
        n = self.layout.size
        if wrong := [f for f in which if not 0 <= f < of]:
            raise LayoutMismatch(f"a model in {of} slices has no slice {wrong[0]}: they are counted from 0")
        slices = [np.arange(f * n // of, (f + 1) * n // of) for f in sorted(set(which))]
        return self.sparse(np.concatenate(slices) if slices else (), same=False)

    @property
    def nbytes(self) -> int:
        return int(self.vector.nbytes)

    def is_finite(self) -> bool:
        return bool(np.isfinite(self.numbers).all())

    def _check_same_layout(self, other: Model) -> None:
        if other.layout is not self.layout and other.layout != self.layout:
            raise LayoutMismatch(f"{self!r} cannot be completed with {other!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Model) or isinstance(other, PartialModel):
            return False
        return self.layout == other.layout and np.array_equal(self.vector, other.vector)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Model({self.layout.part}, {self.layout.size} numbers, {self.layout.digest[:8]})"


class PartialModel(Model):
    """A model of which only some numbers are known: a peer sent no others. It has no vector: `over` completes it.

    `same`: the sender omitted numbers that have changed little, so in a mean they count as the receiver's own.
    Otherwise it omitted them for the size of the message, and a mean ignores them."""

    __slots__ = ("indices", "same", "values")

    indices: Indices  # ascending
    values: Vector
    same: bool

    def __init__(self, layout: Layout, indices: Indices, values: Vector, *, same: bool) -> None:
        if values.dtype != np.float32 or indices.dtype != np.int32 or values.shape != indices.shape:
            raise LayoutMismatch(f"{indices.dtype}{indices.shape} and {values.dtype}{values.shape} do not fit")
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "indices", _read_only(indices))
        object.__setattr__(self, "values", _read_only(values))
        object.__setattr__(self, "same", same)
        object.__setattr__(self, "source", None)

    @property
    def vector(self) -> Vector:  # type: ignore[override]
        raise LayoutMismatch(f"{self!r} has no vector: complete it with `.over(self.model)`")

    @property
    def numbers(self) -> Vector:
        return self.values

    def over(self, base: Model) -> Model:
        self._check_same_layout(base)
        vector = base.vector.copy()
        vector[self.indices] = self.values
        return Model(self.layout, vector, self)

    def placed(self, layout: Layout) -> Model:
        return PartialModel(layout, self.indices, self.values, same=self.same)

    def sparse(self, indices: npt.ArrayLike, *, same: bool = True) -> PartialModel:
        kept = np.isin(self.indices, _places(indices))
        return PartialModel(self.layout, self.indices[kept], self.values[kept], same=same)

    @property
    def core(self) -> Model:
        return self._slice(self.layout.core, 0)

    @property
    def head(self) -> Model:
        return self._slice(self.layout.head, self.layout.core_size)

    def _slice(self, layout: Layout, start: int) -> PartialModel:
        first, end = np.searchsorted(self.indices, (start, start + layout.size))
        indices = self.indices[first:end] - np.int32(start)
        return PartialModel(layout, indices, self.values[first:end], same=self.same)

    @property
    def nbytes(self) -> int:
        return int(self.indices.nbytes + self.values.nbytes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PartialModel)
            and self.layout == other.layout
            and self.same == other.same
            and np.array_equal(self.indices, other.indices)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None

    def __repr__(self) -> str:
        return f"PartialModel({self.layout.part}, {self.values.size} of {self.layout.size} numbers)"


def _places(indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Ascending, each once. A mask would be taken for the places 0 and 1."""
    given = np.asarray(indices)
    if given.size and given.dtype.kind not in "iu":
        raise LayoutMismatch(f"places are whole numbers, not {given.dtype}; of a mask: np.flatnonzero(mask)")
    places = given.astype(np.int64).ravel()
    ascending = (places[1:] > places[:-1]).all()
    return places if ascending else np.unique(places)  # which takes seconds for millions of places


def _joined(core: Model, head: Model, whole: Layout) -> PartialModel:
    """core + head, if one of them is partial."""
    places = [m.indices if isinstance(m, PartialModel) else np.arange(m.layout.size) for m in (core, head)]
    indices = np.concatenate((places[0], places[1] + core.layout.size)).astype(np.int32)
    same = all(m.same for m in (core, head) if isinstance(m, PartialModel))
    return PartialModel(whole, indices, np.concatenate((core.numbers, head.numbers)), same=same)


@dataclass(frozen=True, slots=True, eq=False)
class LocalState:
    """What a node keeps beside the models of its policy: an immutable value that never travels. A job gets it, and
    a training replaces it."""

    private: Vector | None = None  # the tensors that never leave the node
    layout: str = ""  # the digest of the layout of `private`
    tensors: Mapping[str, Array] = field(default_factory=dict)  # such as the state of an optimizer
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON types

    def __post_init__(self) -> None:
        if self.private is not None:
            object.__setattr__(self, "private", _read_only(self.private))
        tensors = {name: _read_only(array) for name, array in self.tensors.items()}
        object.__setattr__(self, "tensors", MappingProxyType(tensors))
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))

    @property
    def for_evaluation(self) -> LocalState:
        """Only the part that determines a model's outputs."""
        return LocalState(self.private, self.layout) if self.tensors or self.facts else self


@dataclass(slots=True)
class StateCell:
    """The local state during a job. A training replaces `state` with the state after it."""

    state: LocalState


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
