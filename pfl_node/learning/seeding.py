"""Seeded generators. torch.manual_seed is not used: in a CUDA build it takes 170 us and records every call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import numpy as np
import torch


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def noise_of(*words: object) -> np.random.Generator:
    """A generator for noise that must not be guessable: it uses all entropy of the words, whereas torch's
    generator has only 2^32 seeds, which an observer of a model could try."""
    digest = sha256("/".join(map(str, words)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def seed_layers(seed: int, device: torch.device) -> None:
    """Seed the device's default generator, the only one that layers such as dropout use."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed % 2**63)
    else:
        torch.default_generator.manual_seed(seed % 2**63)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch while a module is built, and restore the generator of a surrounding training."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed % 2**63)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_transforms(seed: int) -> None:
    """Seed the generators that transforms of samples use: Python's, numpy's and torch's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed % 2**63)


Generators = tuple[Any, Any, torch.Tensor]


def states() -> Generators:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


@contextmanager
def same_generators() -> Iterator[None]:
    """Restore Python's, numpy's and torch's generators afterwards: layers such as dropout use the same ones."""
    python, numpy, layers = states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(layers)
