from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from pfl_node.errors import ConfigError
from pfl_node.learning.layout import layout_of
from pfl_node.learning.models import MODELS, autoencoder, network
from pfl_node.learning.models.layers import MaxPool
from pfl_node.learning.train_options import check_defaults
from pfl_node.learning.workspace_pool import alike

LIGHT = [name for name, one in MODELS.items() if not one.torchvision]


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "count"),
    [
        ("pens_cnn", 10, 3, 32, 73_418),
        ("pens_cnn_linear", 10, 3, 32, 73_418),
        ("facade_lenet", 10, 3, 32, 89_834),
        ("facade_lenet", 41, 3, 32, 121_609),  # what the thesis calls about 120k
        ("facade_lenet", 10, 3, 64, 120_554),
        ("facade_lenet", 41, 3, 64, 247_561),  # what it calls about 250k
        ("resnet8", 41, 3, 64, 312_649),
        ("mnist_2nn", 10, 1, 28, 199_210),
        ("mnist_cnn", 10, 1, 28, 1_663_370),
        ("cnn1", 10, 1, 28, 1_042),
        ("cnn2", 10, 1, 28, 4_138),
        ("cnn3", 10, 1, 28, 8_266),
        ("cnn1", 26, 1, 28, 2_626),
        ("cnn2", 26, 1, 28, 20_826),
        ("cnn3", 26, 1, 28, 23_834),
    ],
)
def test_a_network_has_as_many_parameters_as_its_paper_says(
    name: str, classes: int, channels: int, size: int, count: int
) -> None:
    assert parameters(MODELS[name].build(classes, channels, size)) == count


def test_resnet18_is_torchvisions() -> None:
    module = network("resnet18", 32).build(10, 3, 32)
    assert parameters(module) == 11_181_642
    grey = network("resnet18", 28).build(26, 1, 28)
    with torch.inference_mode():
        assert grey.eval()(torch.zeros(2, 1, 28, 28)).shape == (2, 26)
    head = layout_of(module, MODELS["resnet18"].head).head_entries
    assert [entry.name for entry in head] == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize(("channels", "size", "count"), [(1, 28, 87_125), (3, 32, 499_459)])
def test_an_autoencoder_gives_back_images_of_the_shape_it_gets(channels: int, size: int, count: int) -> None:
    factory = autoencoder(channels, size)
    assert factory is not None
    module = factory()
    assert parameters(module) == count
    with torch.inference_mode():
        again = module(torch.rand(4, channels, size, size))
    assert again.shape == (4, channels, size, size)
    assert 0 <= again.min() <= again.max() <= 1


def test_there_is_no_autoencoder_for_other_images() -> None:
    assert autoencoder(3, 64) is None


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 64), (2, 23)])
def test_a_network_takes_images_of_any_size_and_scores_each_class(name: str, channels: int, size: int) -> None:
    module = network(name, size).build(7, channels, size).eval()
    with torch.inference_mode():
        assert module(torch.zeros(2, channels, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", LIGHT)
def test_a_network_works_with_the_smallest_images_it_says_and_is_refused_smaller_ones(name: str) -> None:
    least = MODELS[name].least
    with torch.inference_mode():
        MODELS[name].build(3, 1, least).eval()(torch.zeros(1, 1, least, least))
    if least > 1:
        with pytest.raises(ConfigError, match=f"needs images of {least} pixels or more per side"):
            network(name, least - 1)


def head_of(name: str) -> set[str]:
    layout = layout_of(MODELS[name].build(10, 3, 32), MODELS[name].head)
    return {entry.name.split(".")[0] for entry in layout.head_entries}


def test_the_head_is_the_last_layer_and_in_resnet8_the_last_two_blocks_too() -> None:
    heads = {name: head_of(name) for name in LIGHT}
    assert heads.pop("resnet8") == {"block2", "block3", "head"}
    assert set(map(frozenset, heads.values())) == {frozenset({"head"})}


def test_facades_head_is_its_fully_connected_layer() -> None:
    layout = layout_of(MODELS["facade_lenet"].build(10, 3, 32), MODELS["facade_lenet"].head)
    assert [(e.name, e.shape) for e in layout.head_entries] == [("head.weight", (10, 1024)), ("head.bias", (10,))]


def test_facades_lenet_normalises_in_two_groups_and_resnet8_in_batches() -> None:
    norms = [m for m in MODELS["facade_lenet"].build(10, 3, 32).modules() if isinstance(m, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels) for norm in norms] == [(2, 32), (2, 32), (2, 64)]
    assert any(isinstance(m, nn.BatchNorm2d) for m in MODELS["resnet8"].build(41, 3, 64).modules())


def test_only_the_papers_network_bends_between_its_fully_connected_layers() -> None:
    x = torch.randn(8, 3, 32, 32)
    made = []
    for name in ("pens_cnn", "pens_cnn_linear"):
        module = MODELS[name].build(10, 3, 32)
        made.append(module)
    made[1].load_state_dict(made[0].state_dict())
    assert not torch.equal(made[0](x), made[1](x))
    assert not alike(*made)


@pytest.mark.parametrize("name", LIGHT)
def test_two_of_a_kind_can_share_a_workspace(name: str) -> None:
    assert alike(MODELS[name].build(10, 1, 28), MODELS[name].build(10, 1, 28))


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_training_values_are_settings(name: str) -> None:
    assert check_defaults(name, MODELS[name].train)["optimizer"] == ("adam" if "pens" in name else "sgd")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown model 'facade_lent'; did you mean 'facade_lenet'"):
        network("facade_lent", 32)


def test_the_table_is_read_without_torch() -> None:
    code = "import sys, pfl_node.learning.models; assert not {'torch', 'torchvision'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


@pytest.mark.parametrize(("size", "side"), [(2, 8), (2, 15), (4, 28), (4, 30)])
def test_pooling_without_gradients_gives_torchs_values(size: int, side: int) -> None:
    images = torch.randn(3, 2, side, side, generator=torch.Generator().manual_seed(0)).round()  # with many ties
    images[0, 0, 1, 0], images[1, 1, 0, 3] = float("nan"), float("inf")
    with torch.inference_mode():
        found = MaxPool(size)(images)
    assert torch.equal(found.nan_to_num(7), nn.MaxPool2d(size)(images).nan_to_num(7))


@pytest.mark.parametrize("name", ["facade_lenet", "pens_cnn", "mnist_cnn", "cnn2"])
def test_a_network_computes_the_same_with_and_without_gradients(name: str) -> None:
    channels, size = (3, 32) if name == "facade_lenet" else (1, 28)
    module = MODELS[name].build(10, channels, size).eval()
    images = torch.randn(5, channels, size, size)
    with torch.inference_mode():
        found = module(images)
    assert torch.equal(found, module(images))


@pytest.mark.parametrize(("size", "side"), [(2, 8), (2, 15), (4, 30)])
def test_pooling_has_the_gradients_of_torchs(size: int, side: int) -> None:
    images = torch.randn(3, 2, side, side, generator=torch.Generator().manual_seed(0)).round()  # with many ties
    found, known = images.clone().requires_grad_(), images.clone().requires_grad_()
    ours, torchs = MaxPool(size)(found), nn.functional.max_pool2d(known, size)
    assert torch.equal(ours, torchs)
    (gradient,) = torch.autograd.grad((ours * ours.detach()).sum(), found)
    (known_gradient,) = torch.autograd.grad((torchs * torchs.detach()).sum(), known)
    assert torch.equal(gradient, known_gradient)


def test_pooling_has_a_gradient_for_every_sample() -> None:
    images = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))

    def largest(pool: nn.Module) -> torch.Tensor:
        gradient = torch.func.grad(lambda image: pool(image.unsqueeze(0)).square().sum())
        found: torch.Tensor = torch.func.vmap(gradient)(images)
        return found

    assert torch.equal(largest(MaxPool(2)), largest(nn.MaxPool2d(2)))
