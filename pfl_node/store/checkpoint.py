"""One checkpoint as a safetensors file. Does not import torch.

A checkpoint holds the policy's state as JSON and vectors, and a checksum over the whole file (computed with zeros
in its own place) that detects any changed or missing byte.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pfl_node.errors import LayoutMismatch, StoreError, Unusable
from pfl_node.failpoints import failpoint
from pfl_node.model import Layout
from pfl_node.store.atomic import write_atomic
from pfl_node.store.policy_state import freeze, thaw

FORMAT = "pfl-node checkpoint 2"
WITHOUT_CHECKSUM = "pfl-node checkpoint 1"  # still read
BLANK = "0" * 32
SEAL = re.compile(rb'"checksum":"([0-9a-f]{32})"')  # quotes inside the JSON are escaped, so they do not match
BLOCK = 1 << 20
# Errors that are not the file's fault, and their remedies.
NOT_ITS_FAULT = dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions") | dict.fromkeys(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT), "fix that and start again"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The policy's snapshot and the file's metadata."""

    path: Path
    state: dict[str, Any]
    facts: Mapping[str, str]


def save_checkpoint(
    path: Path,
    state: Mapping[str, Any],
    layout: Layout,
    *,
    metadata: Mapping[str, str] | None = None,
    **facts: str,
) -> None:
    """Replace the file atomically. `metadata` is not compared when loading, `facts` are."""
    frozen, vectors = freeze(dict(state))
    own = {"format": FORMAT, "layout": layout.digest, "state": json.dumps(frozen), "checksum": BLANK}
    data = save(vectors, metadata={**(metadata or {}), **facts, **own})
    end = 8 + int.from_bytes(data[:8], "little")
    head, body = data[:end], memoryview(data)[end:]
    hasher = xxhash.xxh3_128(head)
    hasher.update(body)
    seal = f'"checksum":"{hasher.hexdigest()}"'.encode()
    write_atomic(path, SEAL.sub(seal, head, count=1), body, what="checkpoint")


def load_checkpoint(
    path: Path, layout: Layout, predictions: Layout | None = None, **facts: str
) -> dict[str, Any] | None:
    """The snapshot; None if there is no file. Raises Unusable for another model, run or policy."""
    found = read_checkpoint(path, layout, predictions, **facts)
    return found.state if found else None


def read_checkpoint(
    path: Path, layout: Layout, predictions: Layout | None = None, **facts: str
) -> Checkpoint | None:
    """None if there is no file. Raises Unusable, or StoreError if the file could not be examined."""
    try:
        failpoint("checkpoint.read")
        sealed = _verified(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _compare(path, metadata, facts, layout, sealed=sealed)
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state: dict[str, Any] = thaw(json.loads(metadata["state"]), vectors, layout, predictions)
    except FileNotFoundError:
        return None
    except OSError as error:
        if todo := NOT_ITS_FAULT.get(error.errno or 0):
            raise StoreError(f"cannot read checkpoint {path}: {error.strerror}; {todo}") from error
        raise Unusable(path, f"damaged: {error}", damaged=True) from error
    except (SafetensorError, KeyError, ValueError, TypeError, LayoutMismatch) as error:
        raise Unusable(path, f"damaged: {error}", damaged=True) from error
    return Checkpoint(path, state, metadata)


def _verified(path: Path) -> bool:
    """Whether the checksum is correct; False: there is none. Reads the file in blocks."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise Unusable(path, f"damaged: its {size} bytes are truncated or not a checkpoint", damaged=True)
        file.seek(0)
        head = file.read(8 + length)
        seals = SEAL.findall(head)
        if len(seals) != 1:
            return False
        hasher = xxhash.xxh3_128(SEAL.sub(f'"checksum":"{BLANK}"'.encode(), head))
        while block := file.read(BLOCK):
            hasher.update(block)
    if hasher.hexdigest().encode() != seals[0]:
        raise Unusable(path, "damaged: its checksum does not match", damaged=True)
    return True


def _compare(
    path: Path, metadata: Mapping[str, str], facts: Mapping[str, str], layout: Layout, *, sealed: bool
) -> None:
    known = metadata.get("format") in (FORMAT, WITHOUT_CHECKSUM)
    if known and not sealed and (metadata["format"] == FORMAT or "checksum" in metadata):
        raise Unusable(path, "damaged: its checksum is missing", damaged=True)
    expected = {"format": metadata["format"] if known else FORMAT, "layout": layout.digest, **facts}
    for key, value in expected.items():
        if metadata.get(key) != value:
            why = f"of another {key} ({metadata.get(key)!r}, now {value!r})"
            if key == "layout" and layout.frozen and "layout" in metadata:
                why = f"of another model ({layout.difference(metadata['layout'])})"
            raise Unusable(path, why, damaged=False)
