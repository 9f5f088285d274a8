"""Seeds for torch. Not torch.manual_seed: in a CUDA build it takes 170 us, and keeps a record of every call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def seed_layers(seed: int, device: torch.device) -> None:
    """Dropout and its like know only the device's default generator."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed % 2**63)
    else:
        torch.default_generator.manual_seed(seed % 2**63)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """For code that makes a module. A training that is going on around us finds its generator as it was."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed % 2**63)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
