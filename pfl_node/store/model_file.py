"""The personal model as a safetensors file, which any reader of that format opens. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from pfl_node.errors import StoreError
from pfl_node.store.atomic import write_atomic

Array = npt.NDArray[Any]
FORMAT = "pfl-node model 1"
KINDS = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}


def save_model(path: Path, tensors: Mapping[str, Array], **facts: str) -> None:
    """Replace the file atomically. Writes the arrays from where they are: `safetensors.numpy.save` would hold a
    second copy of a large model."""
    # Wide types first, so that every tensor is aligned in memory.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    arrays = {name: np.asarray(tensors[name], order="C") for name in order}
    pieces = [array.reshape(-1).view(np.uint8).data for array in arrays.values() if array.size]
    write_atomic(path, _header(arrays, facts), *pieces, what="model")


def _header(arrays: Mapping[str, Array], facts: Mapping[str, str]) -> bytes:
    rows: dict[str, Any] = {"__metadata__": dict(facts)}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        rows[name] = {
            "dtype": KINDS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the data into memory, aligned
    return len(text).to_bytes(8, "little") + text


def read_facts(path: Path) -> dict[str, str]:
    """The metadata of a personal model."""
    return _read(path, tensors=False)[0]


def read_model(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """The metadata and the named tensors."""
    return _read(path, tensors=True)


def _read(path: Path, *, tensors: bool) -> tuple[dict[str, str], dict[str, Array]]:
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys()) if tensors else []
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise StoreError(f"there is no {path}: a node writes it with its first checkpoint") from None
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
