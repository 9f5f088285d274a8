"""A node's checkpoint and its personal model on disk, as safetensors. Knows no torch and no policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pfl_node.errors import LayoutMismatch, StoreError
from pfl_node.model import Layout
from pfl_node.store.files import write_atomic
from pfl_node.store.state import freeze, thaw

FORMAT = "pfl-node checkpoint 1"


def save_checkpoint(path: Path, state: Mapping[str, Any], layout: Layout, **facts: str) -> None:
    """Write a policy's snapshot; the file is whole or the old one stays."""
    frozen, vectors = freeze(dict(state))
    facts |= {"format": FORMAT, "layout": layout.digest, "state": json.dumps(frozen)}
    write_atomic(path, save(vectors, metadata=facts))


def load_checkpoint(path: Path, layout: Layout, **facts: str) -> dict[str, Any] | None:
    """The snapshot, or None if there is none. A file for another model, run or policy is an error that says so."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        expected = {"format": FORMAT, "layout": layout.digest, **facts}
        for key, value in expected.items():
            if metadata.get(key) != value:
                raise StoreError(
                    f"checkpoint {path} is of another {key} ({metadata.get(key)!r}, now {value!r}); "
                    "use another --data-dir or move the file away"
                )
        state: dict[str, Any] = thaw(json.loads(metadata["state"]), vectors, layout)
    except (SafetensorError, OSError, KeyError, ValueError, LayoutMismatch) as error:
        raise StoreError(f"checkpoint {path} is damaged: {error}; move it away to start anew") from error
    return state


def save_model(path: Path, tensors: Mapping[str, npt.NDArray[Any]], **facts: str) -> None:
    """Write named tensors that any safetensors reader opens."""
    write_atomic(path, save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata=dict(facts)))
