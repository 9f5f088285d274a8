"""Select a torch device."""

from __future__ import annotations

import torch

from pfl_node.errors import ConfigError


def pick(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N as an existing device. Uses one CPU thread: nodes share the cores, and small
    models gain nothing from more."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        torch.set_num_threads(1)
        return device
    if device.type != "cuda":
        raise ConfigError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: torch finds no GPU; use --device cpu or auto")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(f"device {name!r}: there are only {count} GPUs, cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", device.index or 0)
