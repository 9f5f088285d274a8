"""Terms of a loss that a policy requests by name, `Train(..., penalty="moon", anchors=…, knobs=…)`.

A penalty is a function of (model, batch, output, anchors, **knobs): the module in training, the batch, the output
of the module for it, and the policy's anchors as modules in evaluation mode that are not trained. It returns a
number to add to the loss. `head_input` of each module is the input of its head in the last forward pass: the
representation of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from pfl_node.errors import ConfigError, TaskError, nearest
from pfl_node.learning.networks import Networks
from pfl_node.learning.samples import Batch, call
from pfl_node.learning.task import Task
from pfl_node.learning.workspace import Workspace
from pfl_node.model import Model, StateCell
from pfl_node.plugin import load

Penalty = Callable[..., Tensor]
Term = Callable[[Batch, Any], Tensor]  # called with a batch and the module's output for it
SEEN = "head_input"


def moon(
    model: nn.Module,
    batch: Batch,
    output: Any,  # noqa: ARG001
    anchors: Mapping[str, nn.Module],
    mu: float = 1.0,
    tau: float = 0.5,
) -> Tensor:
    """Model-contrastive learning (Li, He & Song 2021, equation 3): representations move towards those of the
    `global` model and away from those of my `previous` one."""
    for anchor in anchors.values():
        call(anchor, batch.x)
    z, near, far = (represented(m) for m in (model, anchors["global"], anchors["previous"]))
    similar = torch.stack([fn.cosine_similarity(z, near), fn.cosine_similarity(z, far)], 1)
    return mu * fn.cross_entropy(similar / tau, torch.zeros(len(z), dtype=torch.long, device=z.device))


PENALTIES: dict[str, Penalty] = {"moon": moon}


def represented(module: nn.Module) -> Tensor:
    """The input of the module's head in the last forward pass, a row for each sample."""
    found = vars(module).get(SEEN)
    if not isinstance(found, Tensor):
        raise TaskError("a penalty needs the input of the head: call the head as a module within the model")
    return found.flatten(1)


class Penalties:
    """The penalties that a task's learner can add to its loss."""

    def __init__(self, task: Task) -> None:
        self._task, self._known = task.name, {**PENALTIES, **task.penalties}

    def find(self, name: str) -> Penalty:
        if name in self._known:
            return self._known[name]
        if ":" not in name:
            raise ConfigError(f"task {self._task} has no penalty {name!r}; {nearest(name, self._known)}")
        found: Penalty = load("penalty", name, ConfigError)
        return found

    @contextmanager
    def term(
        self,
        name: str | None,
        anchors: Mapping[str, Model] | None,
        knobs: Mapping[str, float] | None,
        space: Workspace,
        networks: Networks,
        state: StateCell | None,
    ) -> Iterator[Term | None]:
        """The named penalty for the module of a workspace; None: no penalty."""
        if name is None:
            yield None
            return
        penalty = self.find(name)
        with ExitStack() as stack:
            modules = {}
            for key, anchor in (anchors or {}).items():
                modules[key] = stack.enter_context(networks.loaded(anchor, state)).module.requires_grad_(False)
            for module in (space.module, *modules.values()):
                stack.enter_context(head_watched(module, head_modules(space)))

            def term(batch: Batch, output: Any) -> Tensor:
                found = penalty(space.module, batch, output, modules, **knobs or {})
                if not isinstance(found, Tensor) or found.numel() != 1:
                    kind = type(found).__name__ + (f" of {list(found.shape)}" if isinstance(found, Tensor) else "")
                    raise TaskError(
                        f"penalty {name} returned a {kind}: return a tensor of one number, as of mean()"
                    )
                return found

            yield term


def head_modules(space: Workspace) -> set[str]:
    """The names of the modules that own the tensors of the head."""
    entries = (*space.layout.head_entries, *space.private.head_entries)
    return {entry.name.rpartition(".")[0] for entry in entries}


@contextmanager
def head_watched(module: nn.Module, head: set[str]) -> Iterator[None]:
    """Within the context, the module's `head_input` is the input of the first module of its head."""

    def begins(*_: Any) -> None:
        vars(module)[SEEN] = None

    def receives(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if vars(module).get(SEEN) is None and inputs:
            vars(module)[SEEN] = inputs[0]

    hooks = [module.register_forward_pre_hook(begins)]
    hooks += [m.register_forward_pre_hook(receives) for name, m in module.named_modules() if name in head]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        vars(module).pop(SEEN, None)
