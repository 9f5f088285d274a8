"""Stack samples of equal structure into one batch of tensors: float32, int64, bytes or booleans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.learning.samples import Tree

NUMBERS = (int, float, bool, np.number, np.bool_)
PIL = "is a PIL image: convert it in a transform, such as torchvision.transforms.ToTensor()"
CATEGORIES = "number the categories 0, 1, … or drop the column"


class CollateError(Exception):
    """Samples that cannot be stacked; the text says which and why."""


def stack(values: Sequence[Any], what: str, numbers: Sequence[int]) -> Tree:
    """The tree of the samples' tensors, stacked leaf by leaf. `numbers` are the samples' indices, for messages."""
    one = values[0]
    if isinstance(one, Tensor) and _equal_tensors(values):
        return as_model_dtype(torch.stack(list(values)))
    if any(value is None for value in values):
        if all(value is None for value in values):
            return None
        raise CollateError(f"only some samples have {what}, others have None")
    if isinstance(one, Mapping):
        kept = [key for key, value in one.items() if not is_text(value)]
        return {key: stack(_picked(values, key, what, numbers), f"{what}[{key!r}]", numbers) for key in kept}
    if isinstance(one, tuple) or (isinstance(one, list) and not _is_array(one)):
        if len({len(value) for value in values}) > 1:
            raise CollateError(f"{what} has different numbers of elements: give a `collate` that pads them")
        columns = enumerate(zip(*values, strict=True))
        return tuple(stack(column, f"{what}[{i}]", numbers) for i, column in columns)
    tensors = [_leaf(value, f"sample {n}'s {what}") for value, n in zip(values, numbers, strict=True)]
    _check_equal(tensors, what, numbers)
    return as_model_dtype(torch.stack(tensors))


def is_text(value: Any) -> bool:
    """A text, or a list or array of texts: in a dict, it is left out."""
    if isinstance(value, str | bytes):
        return True
    if isinstance(value, list | tuple):
        known = (one for one in value if one is not None)
        return all(map(is_text, known)) and any(one is not None for one in value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return kind in ("U", "S", "T") or (kind == "O" and any(isinstance(one, str | bytes) for one in value))


def _equal_tensors(values: Sequence[Any]) -> bool:
    kind, shape = values[0].dtype, values[0].shape
    return all(isinstance(value, Tensor) and value.dtype == kind and value.shape == shape for value in values)


def as_batch(value: Any) -> Tensor:
    """A leaf of a batch that the task's `collate` made."""
    return as_model_dtype(_leaf(value, "a value of collate's batch"))


def _picked(values: Sequence[Any], key: Any, what: str, numbers: Sequence[int]) -> list[Any]:
    for n, value in zip(numbers, values, strict=True):
        if key not in value:
            raise CollateError(f"sample {n}'s {what} has no {key!r}, but the first sample's has")
    return [value[key] for value in values]


def _is_array(values: list[Any]) -> bool:
    """Nested lists of numbers, as Hugging Face datasets return them."""
    return bool(values) and all(isinstance(v, NUMBERS) or (isinstance(v, list) and _is_array(v)) for v in values)


def _leaf(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, str | bytes):
        raise CollateError(f"{what} is the text {value!r:.40}: {CATEGORIES}")
    if type(value).__module__.startswith("PIL."):
        raise CollateError(f"{what} {PIL}")
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise CollateError(f"{what} is {kind_of(value)}: only numbers are supported") from None


def kind_of(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))


def _check_equal(tensors: Sequence[Tensor], what: str, numbers: Sequence[int]) -> None:
    for n, tensor in zip(numbers, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            raise CollateError(
                f"sample {numbers[0]} has {what} {tuple(tensors[0].shape)} and sample {n} {tuple(tensor.shape)}: "
                "make them equal in a transform, or give a `collate` that pads them"
            )
        if tensor.is_floating_point() != tensors[0].is_floating_point():
            raise CollateError(
                f"sample {numbers[0]} has {what} {tensors[0].dtype} and sample {n} {tensor.dtype}: "
                "give all samples the same type"
            )


def as_model_dtype(tensor: Tensor) -> Tensor:
    """The tensor in the type that models use; bytes and booleans stay as they are."""
    if tensor.is_complex():
        raise CollateError(f"the data is {tensor.dtype}: only real numbers are supported")
    if tensor.is_floating_point():
        return tensor.float()
    return tensor if tensor.dtype in (torch.uint8, torch.bool) else tensor.long()


def whole_labels(y: Tensor) -> Tensor:
    """Convert labels that are integers, bytes or booleans to int64."""
    return y if y.is_floating_point() else y.long()


def check_finite(tree: Tree, where: str, numbers: Sequence[int] | None = None, names: Sequence[Any] = ()) -> None:
    """Raise TaskError for a NaN or an infinity, with its sample and column. `names` are those of the columns."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            check_finite(value, f"{where}[{key!r}]", numbers)
    elif isinstance(tree, tuple):
        for i, value in enumerate(tree):
            check_finite(value, f"{where}[{i}]", numbers)
    elif isinstance(tree, Tensor) and tree.is_floating_point() and not _finite(tree):
        bad = (~torch.isfinite(tree)).nonzero()
        row, *rest = bad[0].tolist()
        sample = row if numbers is None or row >= len(numbers) else numbers[row]
        place = f"sample {sample}"
        if tree.ndim == 2:
            column = names[rest[0]] if names else rest[0]
            place += f", column {column!r}"
        others = len(set(bad[:, 0].tolist())) - 1
        more = f" (and in {others} more)" if others else ""
        raise TaskError(f"{where} contains a NaN or an infinity: {place}{more}")


def _finite(tensor: Tensor) -> bool:
    """Sum in float32 first, which is thirty times as fast, and in float64 only if that overflows."""
    sums = (tensor.sum(dtype=kind) for kind in (torch.float32, torch.float64))
    return any(bool(torch.isfinite(total)) for total in sums)
