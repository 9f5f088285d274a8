"""Explain why a model or a loss fails on a batch: the layer, what it expects and what it got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pfl_node.learning.samples import Batch, Tree

CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}  # number of dimensions besides batch and channels


class Entered(NamedTuple):
    """A layer whose forward began."""

    name: str
    layer: nn.Module
    x: Tensor


@contextmanager
def entered(module: nn.Module) -> Iterator[list[Entered]]:
    """Within the context, collect the layers whose forward began, in this order."""
    seen: list[Entered] = []

    def note(name: str) -> Any:
        def before(layer: nn.Module, given: Any) -> None:
            if given and isinstance(given[0], Tensor):
                seen.append(Entered(name, layer, given[0]))

        return before

    handles = [layer.register_forward_pre_hook(note(name)) for name, layer in module.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def of_layer(seen: list[Entered]) -> str:
    """A hint about the input that the last started layer expects, if its input is at fault; empty: unknown."""
    if not seen:
        return ""
    name, layer, x = seen[-1]
    wrong = _type(layer, x) or _shape(layer, x) or _entries(layer, x)
    what = f"layer {name!r}" if name else "the model"
    return f"{what} ({type(layer).__name__}) {wrong}" if wrong else ""


def _type(layer: nn.Module, x: Tensor) -> str:
    if isinstance(layer, nn.Embedding):
        if x.is_floating_point():
            return "takes whole numbers, and x is float32: give x as integers"
        return ""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or x.dtype == weight.dtype:
        return ""
    if x.is_floating_point():
        return "" if weight.dtype != torch.float32 else _cast(x)
    scaled = "x.float() / 255" if x.dtype == torch.uint8 else "x.float()"
    return f"takes float32, and x is {str(x.dtype).removeprefix('torch.')}: convert it with {scaled}"


def _cast(x: Tensor) -> str:
    """A module whose forward casts to the type that its layers had when the task built them."""
    kind = str(x.dtype).removeprefix("torch.")
    half = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(x.dtype)
    instead = f"; train.precision = {half} computes in {kind}" if half else ""
    return f"is in float32, as every trained parameter, and x is {kind}: leave out the cast in forward{instead}"


def _shape(layer: nn.Module, x: Tensor) -> str:
    got = tuple(x.shape[1:])
    if isinstance(layer, nn.Linear) and (x.ndim == 0 or x.shape[-1] != layer.in_features):
        flat = " (nn.Flatten() before it is missing)" if x[0].numel() == layer.in_features else ""
        return f"takes {layer.in_features} features, and a sample has the shape {got}{flat}"
    for kind, dimensions in CONVOLUTIONS.items():
        if isinstance(layer, kind):
            return _channels(layer.in_channels, dimensions, x)
    return ""


def _channels(channels: int, dimensions: int, x: Tensor) -> str:
    got = tuple(x.shape[1:])
    if x.ndim == dimensions + 2 and x.shape[1] == channels:
        return ""
    what = f"takes samples of {channels} channels and {dimensions} dimensions, and a sample has the shape {got}"
    if x.ndim == dimensions + 1 and channels == 1:
        return f"{what}: add the channel with x.unsqueeze(1)"
    if x.ndim == dimensions + 2 and x.shape[-1] == channels:
        return f"{what}: put the channels first with x.permute({_first(dimensions)})"
    return what


def _first(dimensions: int) -> str:
    return ", ".join(map(str, (0, dimensions + 1, *range(1, dimensions + 1))))


def _entries(layer: nn.Module, x: Tensor) -> str:
    if isinstance(layer, nn.Embedding) and int(x.max()) >= layer.num_embeddings:
        return f"has {layer.num_embeddings} entries, and x contains {int(x.max())}"
    return ""


def of_loss(output: Tree, batch: Batch, *, own_loss: bool) -> str:
    """A hint about a mismatch between output and labels; empty: unknown."""
    y = batch.y
    if output is None:
        return "the model returns None: its forward lacks a `return`"
    if not isinstance(output, Tensor):
        if own_loss:
            return ""
        return f"the model returns a {type(output).__name__}: give a `loss` that takes it"
    if not output.is_floating_point():
        return f"the model returns {str(output.dtype).removeprefix('torch.')}: return its scores, without argmax"
    if not isinstance(y, Tensor):
        return ""
    if own_loss:
        if output.shape == y.shape and not y.is_floating_point():
            return "the labels are integers: convert them in the loss with y.float()"
        if output.shape[:-1] == y.shape and output.shape[-1] == 1:
            return "the output has one column and the labels none: use output.squeeze(1) in the loss"
        return ""
    if not y.is_floating_point() and y.ndim == 2 and output.ndim == 2:
        one = "labels have the shape (n, 1): use y.squeeze(1)"
        return one if y.shape[1] == 1 else "labels are whole numbers with several columns: give y.argmax(1)"
    return ""


def of_order(loss: Callable[[Any, Any], Tensor], output: Tree, batch: Batch) -> str:
    """A hint if the loss takes its arguments in the other order; empty: it does not."""
    try:
        loss(batch.target, output)
    except Exception:  # the user's code may raise anything
        return ""
    return "it takes (y, output): its arguments are (output, y)"


def broadcasts(loss: Callable[[Any, Any], Tensor], output: Tree, y: Tree) -> bool:
    """Whether the loss of n outputs in one column and n labels without it (or the reverse) is over all n x n
    pairs. Tried with numbers from 0 to 1, because a loss may also flatten its arguments itself."""
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)):
        return False
    if sorted((tuple(output.shape), tuple(y.shape))) != [(len(y),), (len(y), 1)]:
        return False
    numbers = torch.linspace(0, 1, 3, device=output.device)
    said = numbers.to(output.dtype).view(3, *output.shape[1:])
    true = numbers.flip(0).to(y.dtype).view(3, *y.shape[1:])
    try:
        given, again = loss(said, true), loss(said, true)
        single = loss(said.flatten(), true.flatten())
        pairs = loss(said.expand(3, 3), true.expand(3, 3))
    except Exception:  # the loss accepts only the original shapes
        return False
    return bool(torch.equal(given, again) and torch.isclose(given, pairs) and not torch.isclose(given, single))
