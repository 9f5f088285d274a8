"""`train.compile`: a workspace's module after torch.compile, and the compiler's errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pfl_node.errors import ConfigError
from pfl_node.learning.workspace import Workspace


def compiled(space: Workspace) -> nn.Module:
    """The first call compiles the module, which takes from seconds to minutes."""
    if space.compiled is None:
        space.compiled = torch.compile(space.module)  # type: ignore[assignment]
    return space.compiled  # type: ignore[return-value]


@contextmanager
def compile_errors(compiling: bool) -> Iterator[None]:
    if not compiling:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        text = str(error).strip().splitlines()[0]
        raise ConfigError(f"train.compile: torch.compile fails on this model: {text}; leave it out") from error
