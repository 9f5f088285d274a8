"""The CUDA path without a GPU: the training loop runs on fake CUDA tensors, and every copy between host and device
is counted.

Torch's autograd engine is C++ and refuses CUDA tensors without a GPU, so the backward pass is replaced by one that
adds to the gradients. It has no code of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pfl_node.errors import ConfigError, DeviceMemoryFull
from pfl_node.learning import workspace
from pfl_node.learning.devices import device_at, memory_errors, pick
from pfl_node.learning.samples import StackedSamples, call
from pfl_node.learning.scoring import measure
from pfl_node.learning.task import Place
from pfl_node.learning.train_options import BUILT_IN, resolve
from pfl_node.learning.training_loop import TrainingRun, batches, nothing
from pfl_node.learning.workspace import Workspace
from tests.unit.learning.nets import CLASSES, convolutions, learner, plain, with_batch_norm

CUDA = torch.device("cuda", 0)
N = 40


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the copies between host and device by direction, also those of a CPU index into a CUDA tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        before = {t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim}
        after = {t.device.type for t in tree_leaves(found) if isinstance(t, Tensor)}
        if before == {"cpu"} and after == {"cuda"}:
            self.seen["to the device"] += 1
        elif before == {"cuda"} and after == {"cpu"}:
            self.seen["to the host"] += 1
        elif before == {"cpu", "cuda"}:
            self.seen["to the host" if after == {"cpu"} else "to the device"] += 1
        return found


Loss = Callable[[Any, Any], Tensor]


def backward(space: Workspace) -> Callable[[Tensor], None]:
    def add(loss: Tensor) -> None:
        assert loss.device.type == "cuda"
        space.grad.add_(loss.detach())

    return add


def train(make: Callable[[], nn.Module], loss: Loss = cross_entropy, **options: Any) -> Counter[str]:
    """One epoch of training on fake CUDA tensors; returns the copies between host and device."""
    me = learner(make, data=None if make is not convolutions else images())
    placement = me._networks.main.placement
    shape = (2, 6, 6) if make is convolutions else (4,)
    given = resolve([options, BUILT_IN])
    with FakeTensorMode(), torch.device(CUDA):
        module = make()
        with torch.device("cpu"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(workspace, "in_float32", lambda module, *_: module)  # `to` fails for fake parameters
            patch.setattr(
                workspace, "pack", lambda _, layout: np.zeros(layout.size, np.float32)
            )  # fake: no numbers
            space = Workspace(module, placement, CUDA)
            data = StackedSamples(
                torch.randn(N, *shape, device=CUDA), torch.zeros(N, dtype=torch.long, device=CUDA)
            )
            run = TrainingRun(space, given, only=None)
            patch.setattr(Tensor, "backward", backward(space))
            with Copies() as copies:
                read = data.batches(batches(N, given, 0, single=True, device=CUDA))
                run.run(read, lambda b: loss(call(space.module, b.x), b.y), nothing)
    seen: Counter[str] = copies.seen
    return seen


def images() -> Any:
    from tests.unit.learning.nets import blobs

    return blobs(shape=(2, 6, 6))


@pytest.mark.parametrize("make", [plain, with_batch_norm, convolutions])
@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "adam"}, {"momentum": 0.9, "clip": 1.0}, {"accumulate": 3}],
    ids=str,
)
def test_training_on_a_gpu_copies_the_order_of_the_samples_once_per_epoch_and_nothing_else(
    make: Any, options: dict[str, Any]
) -> None:
    assert train(make, **options) == {"to the device": 1}
    assert train(make, epochs=3, **options) == {"to the device": 3}


def test_a_copy_to_the_host_in_the_loop_is_counted() -> None:
    """The test above fails if somebody adds one."""

    def planted(output: Tensor, y: Tensor) -> Tensor:
        output.detach().cpu()
        return cross_entropy(output, y)

    assert train(plain, planted)["to the host"] == N / 8


def test_reading_a_number_in_the_loop_fails() -> None:
    def planted(output: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(output, y)
        loss.item()
        return loss

    with pytest.raises(DataDependentOutputException):
        train(plain, planted)


class Numbers:
    """Replaces reading numbers from a device, which fake tensors cannot do, and counts it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read = 0
        patch.setattr(FakeTensor, "tolist", self.tolist())

    def tolist(self) -> Callable[[Tensor], list[float]]:
        def read(tensor: Tensor) -> list[float]:
            self.read += 1
            return [0.0] * len(tensor)

        return read


def score(loss: Loss | None, n: int = N) -> int:
    """Score a split on fake CUDA tensors in batches of 8; returns how often numbers are read."""
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        with torch.device(CUDA):
            module = plain()
        data = StackedSamples(torch.randn(n, 4, device=CUDA), torch.zeros(n, dtype=torch.long, device=CUDA))
        numbers = Numbers(patch)
        with Copies() as copies:
            measure(module, data, None, loss, batch=8, classes=True, between=nothing)
    assert copies.seen["to the host"] == 0
    return numbers.read


def test_scoring_on_a_gpu_reads_its_numbers_once_per_split() -> None:
    assert score(None) == score(None, n=10 * N) == 2


def test_reading_a_number_while_scoring_fails() -> None:
    def planted(output: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(output, y)
        loss.item()
        return loss

    with pytest.raises(DataDependentOutputException):
        score(planted)


def test_a_tensor_on_the_cpu_in_the_loop_fails() -> None:
    def planted(output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output + torch.zeros(CLASSES), y)

    with pytest.raises(Exception, match="device"):
        train(plain, planted)


def test_an_order_on_the_host_would_be_copied_for_every_batch() -> None:
    given = resolve([BUILT_IN])
    with FakeTensorMode(), Copies() as copies:
        data = StackedSamples(torch.randn(N, 4, device=CUDA), torch.zeros(N, device=CUDA))
        list(data.batches(batches(N, given, 0)))
    assert copies.seen["to the device"] == 2 * N / 8


def test_devices_by_name_that_are_not_there_are_one_line() -> None:
    for name in ("cuda", "cuda:1", "mps", "xpu"):
        if not getattr(torch, name.partition(":")[0]).is_available():
            with pytest.raises(ConfigError, match="torch finds no"):
                pick(name)
    with pytest.raises(ConfigError, match="use auto, cpu, cuda"):
        pick("tpu")


def test_cuda_auto_spreads_places_over_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    places = [Place(index=i, nodes=5, seed=0, node_id=f"n{i}") for i in range(5)]
    assert [device_at("cuda:auto", p) for p in places] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]
    unknown = Place(index=None, nodes=None, seed=0, node_id="abc")
    assert device_at("cuda:auto", unknown) == device_at("cuda:auto", unknown)
    assert device_at("cpu", unknown) == "cpu"


def test_memory_that_is_full_is_one_line() -> None:
    with (
        pytest.raises(DeviceMemoryFull, match="the memory of cpu is full: tried to allocate") as raised,
        memory_errors(torch.device("cpu")),
    ):
        raise torch.OutOfMemoryError("tried to allocate 5 GiB\nmore lines")
    assert "\n" not in str(raised.value)
