from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning.layout import layout_of, pack, repack, tensors_of, unpack
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
    assert core[-3:] == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert core[:4] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert head == ["5.weight", "5.bias", "5.running_mean", "5.running_var", "5.num_batches_tracked"]
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
    found = [e.name for e in layout_of(Tied()).entries]
    assert "second.weight" not in found
    assert "home" not in found
    assert {"first.weight", "second.bias", "calls", "mask"} <= set(found)


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


def test_a_frozen_parameter_travels_but_is_not_trained() -> None:
    module = plain()
    module[1].weight.requires_grad = False  # type: ignore[index]
    entries = {e.name: e.trained for e in layout_of(module).entries}
    assert entries == {"1.bias": True, "1.weight": False, "3.weight": True, "3.bias": True}


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
    layout = layout_of(module)
    model = Model(layout, pack(module, layout))
    dtypes = {name: t.dtype for name, t, _ in tensors_of(module)}
    arrays = unpack(model, dtypes)
    for name, tensor, _ in tensors_of(module):
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
