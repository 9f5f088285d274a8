from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_node.learning.layout import layout_of, pack, placement_of
from pfl_node.learning.workspace import Workspace, stretches
from pfl_node.learning.workspace_pool import alike, pool_for
from pfl_node.model import Layout, Model
from tests.unit.learning.nets import Tied, convolutions, plain, with_batch_norm, with_dropout

CPU = torch.device("cpu")


def space(module: nn.Module, head: str | None = None, shared: Sequence[str] = ()) -> Workspace:
    return Workspace(module, placement_of(module, head, shared=shared), CPU)


def numbers(layout: Layout, seed: int = 0) -> Model:
    values = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    return Model(layout, np.abs(values))


def test_every_tensor_and_gradient_is_a_view_of_the_flat_ones() -> None:
    w = space(convolutions())
    for param in w.module.parameters():
        assert param.grad is not None
        assert param.untyped_storage().data_ptr() == w.flat.untyped_storage().data_ptr()
        assert param.grad.untyped_storage().data_ptr() == w.grad.untyped_storage().data_ptr()


@pytest.mark.parametrize("make", [plain, with_batch_norm, convolutions])
def test_what_was_loaded_is_what_the_module_computes_with(make: Callable[[], nn.Module]) -> None:
    w, other = space(make()), make().eval()
    w.load(Model(w.layout, pack(other, w.layout)))
    x = torch.randn(3, 2, 6, 6) if make is convolutions else torch.randn(3, 4)
    assert torch.equal(w.module(x), other(x))


@pytest.mark.parametrize("make", [plain, with_batch_norm, Tied])
def test_loading_and_exporting_gives_the_same_bytes(make: Callable[[], nn.Module]) -> None:
    module = make()
    w = space(module)
    vector = pack(make(), w.layout)
    w.load(Model(w.layout, vector))
    assert w.export().tobytes() == vector.tobytes()


def test_an_export_is_a_copy() -> None:
    w = space(plain())
    w.load(numbers(w.layout))
    out = w.export()
    w.flat.zero_()
    assert out.any()


def test_integers_and_booleans_are_rounded_back_to_their_types() -> None:
    module = Tied()
    w = space(module, shared=["calls", "mask"])
    arrays = {e.name: s for e, s in w.layout.spans()}
    vector = pack(Tied(), w.layout)
    vector[arrays["calls"]] = 11.6  # an average of counters
    vector[arrays["mask"]] = (0.9, 0.2, 0.0, 1.0)
    w.load(Model(w.layout, vector))
    assert (module.calls.item(), module.calls.dtype) == (12, torch.int64)
    assert module.mask.tolist() == [True, False, False, True]
    w.prepare(None)
    w.module(torch.randn(2, 4))
    assert w.export()[arrays["calls"]] == 13


def test_a_module_that_replaces_its_buffer_is_still_exported_and_loaded() -> None:
    class Counts(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + len(x)
            return self.fc(x)  # type: ignore[no-any-return]

    w = space(Counts(), shared="seen")
    start = Model(w.layout, np.zeros(w.layout.size, np.float32))
    for _ in range(2):
        w.load(start)
        w.module(torch.zeros(3, 1))
        w.module(torch.zeros(4, 1))
        seen = {e.name: w.export()[s] for e, s in w.layout.spans()}["seen"]
        assert seen.item() == 7


def test_a_module_of_doubles_works_in_single_precision() -> None:
    w = space(plain().double())
    w.load(numbers(w.layout))
    assert w.module(torch.ones(1, 4)).dtype == torch.float32


def test_the_trained_numbers_are_one_stretch_unless_buffers_lie_between() -> None:
    whole = layout_of(plain())
    assert stretches(whole, None) == [slice(0, whole.size)]
    assert stretches(whole, "core") == [slice(0, 25)]
    assert stretches(whole, "head") == [slice(25, 43)]
    split = layout_of(with_batch_norm())
    assert len(stretches(split, None)) == 2
    assert stretches(layout_of(plain(), "*"), "core") == []


def test_only_the_asked_part_gets_gradients() -> None:
    w = space(plain())
    w.load(numbers(w.layout))
    w.prepare("head")
    w.module(torch.ones(1, 4)).sum().backward()
    assert not w.grad[: w.layout.core_size].any()
    assert w.grad[w.layout.core_size :].any()


def test_statistics_of_the_frozen_part_stand_still_and_the_others_move() -> None:
    w = space(with_batch_norm())
    w.load(numbers(w.layout))
    before = w.export()
    w.prepare("head")
    w.module(torch.randn(6, 4))
    after = w.export()
    core = w.layout.core_size
    assert np.array_equal(before[:core], after[:core])
    assert not np.array_equal(before[core:], after[core:])


def test_a_frozen_buffer_of_the_outermost_module_leaves_the_modules_inside_training() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.out = nn.Linear(4, 3)
            self.register_buffer("scale", torch.ones(1))

    w = space(Outer(), "out")
    w.prepare("head")
    assert [m.training for m in (w.module, w.module.body, w.module.norm, w.module.out)] == [  # type: ignore[union-attr]
        False,
        True,
        False,
        True,
    ]


def test_what_one_node_leaves_in_a_buffer_that_stays_another_does_not_see() -> None:
    class Remembers(nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("last", torch.zeros(2), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            out = self.fc(x) + self.last
            self.last.copy_(out.detach()[0])
            return out  # type: ignore[no-any-return]

    w = space(Remembers())
    model, x = numbers(w.layout), torch.ones(1, 2)
    outputs = []
    for _ in range(2):
        w.load(model)
        outputs.append(w.module(x).tolist())
    assert outputs[0] == outputs[1]


def test_modules_alike_share_one_pool_and_others_do_not() -> None:
    def pool(module: nn.Module) -> object:
        return pool_for(module, placement_of(module), CPU)

    mine = pool(with_dropout())
    assert pool(with_dropout()) is mine
    assert pool(nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Dropout(0.1), nn.Linear(5, 3))) is not mine


def test_modules_are_alike_when_everything_but_the_numbers_is_the_same() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float, table: float = 0.0, layers: int = 1) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1)
            self.scale = scale
            self.sizes = [1] * layers
            self.register_buffer("table", torch.tensor([table]), persistent=False)

    assert alike(Scaled(1.0), Scaled(1.0))
    assert not alike(Scaled(1.0), Scaled(2.0))
    assert not alike(Scaled(1.0), Scaled(1.0, table=1.0))
    assert not alike(Scaled(1.0), Scaled(1.0, layers=2))
    assert alike(nn.LSTM(2, 2), nn.LSTM(2, 2))
    assert alike(Tied(), Tied())
    loose, tied = (nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4))) for _ in range(2))
    loose[2].weight = loose[1].weight
    loose[3].weight = loose[0].weight
    tied[2].weight = tied[0].weight
    tied[3].weight = tied[1].weight
    assert layout_of(loose) == layout_of(tied)
    assert not alike(loose, tied)
    hooked = plain()
    hooked.register_forward_hook(lambda *_: None)
    assert not alike(plain(), hooked)


def test_a_borrowed_workspace_is_not_lent_twice_and_is_used_again() -> None:
    module = plain()
    pool = pool_for(module, placement_of(module), CPU)
    with pool.borrow() as first, pool.borrow() as second:
        assert first is not second
    with pool.borrow() as third, pool.borrow() as fourth:
        assert {id(third), id(fourth)} == {id(first), id(second)}


def test_a_workspace_comes_back_when_its_job_fails() -> None:
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    pool = pool_for(module, placement_of(module), CPU)
    with pytest.raises(KeyError), pool.borrow() as first:
        raise KeyError
    with pool.borrow() as again:
        assert again is first
