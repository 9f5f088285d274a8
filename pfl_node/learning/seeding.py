"""Seeds for torch. Not torch.manual_seed: in a CUDA build it takes 170 us, and keeps a record of every call.
And numpy's chance where torch's will not do: noise that hides something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import numpy as np
import torch


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def noise_of(*words: object) -> np.random.Generator:
    """For noise that nobody may guess. All that is in the words counts, where torch's generator knows only 2^32
    seeds: who sees a model could try them out, one after the other."""
    digest = sha256("/".join(map(str, words)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


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
