"""Chooses the device that a node computes on, and reports when its memory is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import torch

from pfl_node.errors import ConfigError, DeviceMemoryFull
from pfl_node.learning.task import Place

KNOWN = "use auto, cpu, cuda, cuda:N, cuda:auto, mps or xpu"


def device_at(name: str, place: Place) -> str:
    """cuda:auto spreads the places of a run over the GPUs of this machine."""
    if name != "cuda:auto":
        return name
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError("device 'cuda:auto': torch finds no GPU; use --device cpu or auto")
    number = place.index if place.index is not None else crc32(place.node_id.encode())
    return f"cuda:{number % count}"


def pick(name: str) -> torch.device:
    """An existing device. On a CPU, torch uses one thread: nodes share the cores, and small models gain nothing
    from more."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown; {KNOWN}") from None
    if device.type == "cpu":
        torch.set_num_threads(1)
        return device
    if device.type not in ("cuda", "mps", "xpu"):
        raise ConfigError(f"device {name!r} is not supported; {KNOWN}")
    backend = getattr(torch, device.type)
    if not backend.is_available():
        what = "GPU" if device.type == "cuda" else f"{device.type} device"
        raise ConfigError(f"device {name!r}: torch finds no {what}; use --device cpu or auto")
    if device.type == "mps":
        return device
    count = backend.device_count()
    if (device.index or 0) >= count:
        last = f"{device.type}:0 to {device.type}:{count - 1}"
        raise ConfigError(f"device {name!r}: there are only {count} of them, {last}")
    return torch.device(device.type, device.index or 0)


@contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Raises DeviceMemoryFull if a computation needs more memory than the device has."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        text = (str(error).strip() or "out of memory").splitlines()[0]
        raise DeviceMemoryFull(f"the memory of {device} is full: {text}") from error


@contextmanager
def own_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On a GPU, the work of each node of a process is queued in a stream of its own."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()  # other threads read the results


def stream_for(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
