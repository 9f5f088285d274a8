from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning.layout import layout_of, pack, placement_of, repack, tensors_of, unpack
from pfl_node.learning.seeding import seeded
from pfl_node.model import Layout, Model
from tests.unit.learning.nets import Tied, convolutions, plain, with_batch_norm


def names(layout: Layout) -> tuple[list[str], list[str]]:
    return [e.name for e in layout.core_entries], [e.name for e in layout.head_entries]


def test_the_head_is_the_last_layer_with_parameters_unless_the_task_says_otherwise() -> None:
    assert names(layout_of(plain())) == (["1.weight", "1.bias"], ["3.weight", "3.bias"])
    assert names(layout_of(plain(), "1")) == (["3.weight", "3.bias"], ["1.weight", "1.bias"])
    assert names(layout_of(convolutions(), ["4", "6"]))[1] == ["4.weight", "4.bias", "6.weight", "6.bias"]


def test_parameters_come_before_buffers_in_each_part() -> None:
    core, head = names(layout_of(with_batch_norm()))
    assert core[-2:] == ["2.running_mean", "2.running_var"]
    assert core[:4] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert head == ["5.weight", "5.bias", "5.running_mean", "5.running_var"]
    trained = [e.trained for e in layout_of(with_batch_norm()).core_entries]
    assert trained == sorted(trained, reverse=True)


def test_a_star_makes_everything_the_head() -> None:
    layout = layout_of(plain(), "*")
    assert layout.core_size == 0
    assert layout.size == layout_of(plain()).size


def test_a_bare_layer_is_all_head() -> None:
    assert names(layout_of(nn.Linear(2, 2))) == ([], ["weight", "bias"])


def test_a_single_parameter_can_be_the_head() -> None:
    assert names(layout_of(plain(), "3.bias"))[1] == ["3.bias"]


def test_a_prefix_ends_at_a_dot() -> None:
    module = nn.ModuleDict({"fc": nn.Linear(1, 1), "fc2": nn.Linear(1, 1)})
    assert names(layout_of(module, "fc"))[1] == ["fc.weight", "fc.bias"]


def test_a_tied_parameter_appears_once_and_buffers_that_stay_at_home_do_not() -> None:
    placement = placement_of(Tied())
    assert "second.weight" not in placement.names
    assert "home" not in placement.names
    assert {"first.weight", "second.bias", "calls", "mask"} <= placement.names


def test_the_default_head_of_a_model_with_tied_ends_is_not_empty() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.mix = nn.Linear(3, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    assert names(layout_of(Language())) == (["embed.weight"], ["mix.weight", "mix.bias"])


def test_a_layer_with_parametrizations_is_one_head() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert all(name.startswith("1.") for name in names(layout_of(module))[1])
    assert len(names(layout_of(module))[1]) == 3


def test_both_matrices_of_an_adapter_are_one_head() -> None:
    adapter = nn.ModuleDict({"lora_A": nn.Linear(2, 1, bias=False), "lora_B": nn.Linear(1, 2, bias=False)})
    module = nn.ModuleDict({"first": nn.Linear(2, 2), "last": adapter})
    assert names(layout_of(module))[1] == ["last.lora_A.weight", "last.lora_B.weight"]


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name, param in module.named_parameters():
        param.requires_grad = not any(name.startswith(n) for n in names)
    return module


def test_a_frozen_parameter_stays_unless_it_is_listed() -> None:
    module = frozen(plain(), "1.weight")
    placement = placement_of(module)
    assert names(placement.shared) == (["1.bias"], ["3.weight", "3.bias"])
    assert (placement.private.size, placement.frozen) == (0, ("1.weight",))
    listed = placement_of(module, shared="1.weight")
    assert [(e.name, e.trained) for e in listed.shared.core_entries] == [("1.bias", True), ("1.weight", False)]
    assert listed.shared.frozen == ""


def test_the_values_of_frozen_parameters_are_part_of_the_digest() -> None:
    with seeded(0):
        module = frozen(plain(), "1")
    with seeded(0):
        same = frozen(plain(), "1")
    other = frozen(plain(), "1")
    mine, base = layout_of(module), layout_of(other)
    assert mine.digest == layout_of(same).digest
    assert mine.digest != base.digest
    assert mine.head.digest != base.head.digest
    assert mine.difference(base.digest) == "frozen parameters differ: another base model"
    assert layout_of(plain()).difference(layout_of(with_batch_norm()).digest).startswith("another layout")


def test_batch_statistics_travel_but_their_counters_and_other_buffers_stay_unless_they_are_listed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scaler = nn.Module()
            self.scaler.register_buffer("mean", torch.zeros(4))
            self.bn = nn.BatchNorm1d(4)
            self.out = nn.Linear(4, 2)

    placement = placement_of(Scaled())
    assert [e.name for e in placement.private.entries] == ["scaler.mean", "bn.num_batches_tracked"]
    assert "bn.running_mean" in names(placement.shared)[0]
    assert placement_of(Scaled(), shared=["scaler", "bn"]).private.size == 0
    with pytest.raises(TaskError, match=r"'scaler\.mean' is both in `private` and in `shared`"):
        placement_of(Scaled(), private="scaler", shared="*.mean")


def test_a_frozen_batch_norm_is_part_of_the_base_with_its_statistics() -> None:
    placement = placement_of(frozen(with_batch_norm(), "1", "2"))
    assert "2.running_mean" in placement.frozen
    assert "5.running_mean" in names(placement.shared)[1]
    kept = placement_of(frozen(with_batch_norm(), "1", "2"), private="2")
    assert {e.name for e in kept.private.entries} == {
        "2.weight",
        "2.bias",
        "2.running_mean",
        "2.running_var",
        "2.num_batches_tracked",
        "5.num_batches_tracked",
    }


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("bn1", {"bn1.weight", "bn1.bias"}),
        ("*.bn*", {"bn1.weight", "bn1.bias", "block.bn2.weight", "block.bn2.bias"}),
        ("block.*.weight", {"block.fc.weight", "block.bn2.weight"}),
        ("block", {"block.fc.weight", "block.fc.bias", "block.bn2.weight", "block.bn2.bias"}),
        ("*.bias", {"bn1.bias", "block.fc.bias", "block.bn2.bias", "out.bias"}),
    ],
)
def test_globs_name_tensors_or_the_modules_around_them(glob: str, found: set[str]) -> None:
    block = nn.ModuleDict({"fc": nn.Linear(2, 2), "bn2": nn.BatchNorm1d(2, track_running_stats=False)})
    norm = nn.BatchNorm1d(2, track_running_stats=False)
    module = nn.ModuleDict({"bn1": norm, "block": block, "out": nn.Linear(2, 2)})
    assert {e.name for e in placement_of(module, private=glob).private.entries} == found


def test_a_tied_parameter_is_private_by_either_name() -> None:
    for name in ("first.weight", "second.weight"):
        assert placement_of(Tied(), private=name).private.entries[0].name == "first.weight"


def test_the_default_head_is_the_last_layer_that_travels() -> None:
    assert names(placement_of(plain(), private="3").shared) == ([], ["1.weight", "1.bias"])
    assert names(placement_of(frozen(plain(), "3")).shared) == ([], ["1.weight", "1.bias"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"private": "scalr"}, "no 'scalr' for `private`; did you mean 'scaler'?"),
        ({"private": ["*.scale"]}, "no '*.scale' for `private`; did you mean 'scaler'?"),
        ({"shared": "xyz"}, "no 'xyz' for `shared`; it has fc, scaler"),
        ({"private": "*"}, "`private` covers every trained parameter"),
    ],
)
def test_globs_that_cannot_be_used_are_one_line(options: dict[str, Any], text: str) -> None:
    module = nn.ModuleDict({"fc": nn.Linear(1, 1), "scaler": nn.BatchNorm1d(1)})
    with pytest.raises(TaskError) as error:
        placement_of(module, **options)
    assert text in str(error.value)


def test_an_integer_that_float32_cannot_hold_is_refused() -> None:
    module = plain()
    module.register_buffer("table", torch.tensor([2**24 + 1]))
    with pytest.raises(TaskError, match="integers from 2\\^24"):
        pack(module, placement_of(module).private)


@pytest.mark.parametrize(
    ("module", "head", "text"),
    [
        (plain(), "4", "no '4' for the head"),
        (nn.ModuleDict({"classifier": nn.Linear(1, 1)}), "clasifier", "did you mean 'classifier'?"),
        (plain(), [], "the head is empty"),
        (nn.Flatten(), None, "no parameters to train"),
        (nn.Sequential(nn.Linear(1, 1, dtype=torch.complex64)), None, "complex64"),
        (nn.LazyLinear(3), None, "no shape yet"),
    ],
)
def test_a_module_or_head_that_cannot_be_used_is_one_line(
    module: nn.Module, head: str | list[str] | None, text: str
) -> None:
    with pytest.raises(TaskError) as error:
        layout_of(module, head)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_the_same_module_has_the_same_digest_and_another_head_another_one() -> None:
    assert layout_of(plain()).digest == layout_of(plain()).digest
    assert layout_of(plain()).digest != layout_of(plain(), "*").digest


@pytest.mark.parametrize("make", [plain, with_batch_norm, convolutions, Tied])
def test_tensors_go_into_the_vector_and_come_back_with_shape_and_type(make: type[nn.Module]) -> None:
    module = make()
    shared = {Tied: ["calls", "mask"], with_batch_norm: "*.num_batches_tracked"}.get(make, ())
    layout = placement_of(module, shared=shared).shared
    model = Model(layout, pack(module, layout))
    dtypes = {name: t.dtype for name, t, _ in tensors_of(module)}
    arrays = unpack(model, dtypes)
    for name, tensor, _ in tensors_of(module):
        assert isinstance(arrays[name], np.ndarray)  # also a single number, such as num_batches_tracked
        assert arrays[name].dtype == tensor.detach().numpy().dtype
        np.testing.assert_array_equal(arrays[name], tensor.detach().numpy())
    assert repack(arrays, layout) == model


def test_a_part_can_be_packed_alone() -> None:
    layout = layout_of(plain())
    model = Model(layout, np.arange(layout.size, dtype=np.float32))
    arrays = unpack(model.head, dict.fromkeys([e.name for e in layout.entries], torch.float32))
    assert set(arrays) == {"3.weight", "3.bias"}
    assert repack(arrays, layout.head) == model.head


def test_tensors_that_do_not_fit_are_named() -> None:
    layout = layout_of(plain())
    arrays = unpack(
        Model(layout, np.zeros(layout.size, np.float32)), {e.name: torch.float32 for e in layout.entries}
    )
    with pytest.raises(LayoutMismatch, match=r"no tensor '3\.bia'; did you mean '3\.bias'"):
        repack(arrays | {"3.bia": np.zeros(1)}, layout)
    with pytest.raises(LayoutMismatch, match=r"'3\.bias' is missing"):
        repack({k: v for k, v in arrays.items() if k != "3.bias"}, layout)
    with pytest.raises(LayoutMismatch, match=r"'3\.bias' has the shape \(1,\)"):
        repack(arrays | {"3.bias": np.zeros(1)}, layout)


def test_a_factory_that_changes_its_mind_is_found() -> None:
    layout = layout_of(plain())
    with pytest.raises(TaskError, match="different shapes"):
        pack(nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), layout)
    with pytest.raises(TaskError, match="different shapes"):
        pack(with_batch_norm(), layout)
