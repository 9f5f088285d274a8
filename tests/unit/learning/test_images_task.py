from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms

from pfl_node.errors import ConfigError
from pfl_node.learning import datasets
from pfl_node.learning.data import complete
from pfl_node.learning.datasets import load
from pfl_node.learning.images import images, scaled
from pfl_node.learning.learner import Learner
from pfl_node.learning.rotation import turned
from pfl_node.learning.samples import StackedSamples
from pfl_node.learning.task import Place, Task
from pfl_node.learning.tasks import TASKS, find, load_task
from pfl_node.settings import TaskSettings, TrainSettings
from tests.unit.learning.tiny_datasets import write_cifar10, write_folders, write_mnist

REAL = Path(os.environ.get("PFL_DATA") or Path(__file__).parents[4] / "shared" / "data")
PAPERS = [name for name in TASKS if name != "digits"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each data set."""
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root, train=400, test=60)
    write_mnist(root / "MNIST" / "raw", train=400, test=60)
    write_mnist(root / "FashionMNIST" / "raw", train=2500, test=60)
    names = ("emnist-letters-train", "emnist-letters-test")
    write_mnist(root / "EMNIST" / "raw", train=520, test=52, classes=26, names=names, first=1)
    write_folders(root / "imagenette2-160", each=20, test="val")
    return root


@pytest.fixture(autouse=True, scope="module")
def nothing_is_kept() -> Iterator[None]:
    yield
    datasets._load.cache_clear()


def place(root: Path, index: int | None = 0, nodes: int | None = 4, name: str = "cifar10", **options: Any) -> Task:
    """The task of a place, as the daemon asks for it."""
    settings = TaskSettings(name=name, root=str(root), **options)  # type: ignore[call-arg]
    return load_task(settings, Place(index=index, nodes=nodes, seed=3, node_id="me"))


def aside(root: Path, index: int, **options: Any) -> torch.Tensor:
    found = place(root, index, 4, **options).auxiliary
    assert isinstance(found, torch.Tensor)
    return found


def learner(task: Task) -> Learner:
    return Learner(task, TrainSettings(), "cpu")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "train"),
    [
        ("cifar10", (3, 32, 32), 10, {"optimizer": "sgd", "lr": 0.01, "batch": 8, "steps": 10}),
        ("fashion_mnist", (1, 28, 28), 10, {"optimizer": "adam", "lr": 1e-3, "batch": 8, "epochs": 3.0}),
        ("mnist", (1, 28, 28), 10, {"optimizer": "sgd", "lr": 0.1, "batch": 10, "epochs": 1.0}),
        ("emnist", (1, 28, 28), 26, {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "batch": 64, "epochs": 1.0}),
        ("imagenette", (3, 64, 64), 2, {"optimizer": "sgd", "lr": 3e-4, "batch": 8, "steps": 10}),
    ],
)
def test_a_named_task_is_what_its_paper_did(
    root: Path, name: str, shape: tuple[int, ...], classes: int, train: dict[str, Any]
) -> None:
    task = place(root, name=name)
    assert (task.name, dict(task.train_defaults), task.train.x.shape[1:]) == (name, train, shape)
    me = learner(task)
    assert me.score([me.fresh(0)], split="test")[0].samples == len(task.test.y)
    assert me.layout.entries[-1].shape == (classes,)


def test_pictures_of_ones_own_are_learned_too(root: Path) -> None:
    task = place(root / "imagenette2-160", name="images", size=24, model="mnist_2nn")
    assert (task.name, task.train.x.shape[1:]) == ("image_folder", (3, 24, 24))
    me = learner(task)
    assert me.train(me.fresh(0), seed=0).is_finite()


def test_the_data_of_a_place_is_turned_as_its_cluster_is(root: Path) -> None:
    data = load("cifar10", root)
    pixels = {row.tobytes(): n for n, row in enumerate(data.train.x)}
    seen: list[int] = []
    for index, angle in enumerate((0, 0, 0, 90, 90, 30)):
        task = place(root, index, 6, angles=(0, 90, 30), sizes=(3, 2, 1))
        assert task.cluster == (0, 90, 30).index(angle)
        if angle == 30:
            continue
        bytes_ = ((task.train.x.permute(0, 2, 3, 1) + 1) * 127.5).round().to(torch.uint8).numpy()
        mine = [pixels[np.ascontiguousarray(row).tobytes()] for row in turned(bytes_, -angle)]
        np.testing.assert_array_equal(data.train.y[mine], task.train.y)
        seen += mine
    assert len(seen) == len(set(seen))


def test_the_test_images_are_turned_too_and_shared_by_the_cluster(root: Path) -> None:
    first, second, other = (place(root, i, 4, tests="all").test for i in (0, 1, 2))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.x.data_ptr() == second.x.data_ptr()
    np.testing.assert_array_equal(other.x, torch.rot90(first.x, 2, (2, 3)))
    np.testing.assert_array_equal(other.y, first.y)


def test_the_clusters_part_the_test_images(root: Path) -> None:
    assert [len(place(root, i, 4).test.y) for i in (0, 2)] == [30, 30]
    assert len(place(root, 0, 4, tests=7).test.y) == 7


def test_a_learner_takes_no_copy_of_the_images(root: Path) -> None:
    task = place(root, model="facade_lenet")
    me = learner(task)
    assert task.test is not None
    assert address(me, "train") == task.train.x.data_ptr()
    assert address(me, "test") == task.test.x.data_ptr()
    assert address(me, "val") == task.train.x.data_ptr()  # FACADE keeps none for validation
    assert me._splits["val"].n == 100


def address(me: Learner, split: str) -> int:
    samples = me._splits[split]
    assert isinstance(samples, StackedSamples)
    return int(samples.x.data_ptr())


def test_validation_looks_at_200_of_the_training_images_where_there_are_none_for_it(root: Path) -> None:
    task = place(root, 0, 1)
    assert task.val is not None
    assert (len(task.train.y), len(task.val.y)) == (400, 200)


def test_bytes_are_scaled_as_torchvision_scales_them() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    theirs = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])(every)
    np.testing.assert_array_equal(scaled(every[None])[0, :, :, 0], theirs[0])


def test_another_angle_is_turned_as_torchvision_turns_it(root: Path) -> None:
    pixels = load("cifar10", root).train.x[:5].copy()
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    theirs = transforms.functional.rotate(x, 30, transforms.InterpolationMode.BILINEAR)
    away = np.abs(turned(pixels, 30).astype(int) - theirs.permute(0, 2, 3, 1).numpy().astype(int))
    assert away.max() <= 1


def test_auxiliary_images_are_the_same_everywhere_turned_in_turn_and_nobodys_own(root: Path) -> None:
    tasks = [place(root, i, 4, auxiliary=0.25) for i in (0, 3)]
    first, second = (aside(root, i, auxiliary=0.25) for i in (0, 3))
    assert first.data_ptr() == second.data_ptr()
    assert first.shape == (100, 3, 32, 32)
    known = {row.numpy().tobytes() for row in first} | {torch.rot90(r, 2, (1, 2)).numpy().tobytes() for r in first}
    assert not any(row.contiguous().numpy().tobytes() in known for task in tasks for row in task.train.x)
    assert torch.equal(aside(root, 0, auxiliary=100, auxiliary_samples=30), first[:30])
    assert place(root, 0, 4).auxiliary is None


def test_a_place_finds_the_auxiliary_images_strange_with_the_thesis_autoencoder(root: Path) -> None:
    task = place(root, 1, 4, name="mnist", model="cnn1", auxiliary=40, samples=20)
    assert task.autoencoder is not None
    assert sum(p.numel() for p in task.autoencoder().parameters()) == 87_125
    me = learner(task)
    assert me.predict(me.fresh(0), seed=0, novelty=1).is_finite()


def test_several_models_are_dealt_out_in_turn(root: Path) -> None:
    options = {"name": "mnist", "model": "cnn1,cnn3"}
    sizes = [learner(place(root, i, 4, **options)).layout.size for i in range(4)]
    assert sizes == [1_042, 8_266, 1_042, 8_266]
    alone = {learner(place(root, None, None, **options)).layout.size for _ in range(2)}
    assert len(alone) == 1


@pytest.mark.parametrize(
    ("partition", "more"),
    [
        ("iid", {}),
        ("shards", {}),
        ("paired_shards", {}),
        ("dirichlet", {"alpha": 0.1}),
        ("quantity", {"alpha": 0.5}),
    ],
)
def test_every_partition_gives_each_place_something(root: Path, partition: str, more: dict[str, float]) -> None:
    tasks = [place(root, i, 10, name="mnist", partition=partition, **more) for i in range(10)]
    assert sum(len(task.train.y) for task in tasks) == 400
    if partition.endswith("shards"):
        assert max(len(set(task.train.y.tolist())) for task in tasks) <= 2


def test_a_node_without_an_index_draws_its_images(root: Path) -> None:
    task = place(root, None, None, samples=30, val=10, sizes=(3, 1))
    assert task.val is not None
    assert (len(task.train.y), len(task.val.y)) == (30, 10)
    again = place(root, None, None, samples=30, val=10, sizes=(3, 1))
    assert torch.equal(task.train.x, again.train.x)


def test_lists_may_come_as_text_from_a_command_line(root: Path) -> None:
    assert place(root, 3, 4, angles="0, 90", sizes="1,3").cluster == 1
    assert place(root, 3, 4, angles=-90).cluster == 0
    assert torch.equal(place(root, 3, 4, angles=-90).train.x, place(root, 3, 4, angles=[270]).train.x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"angles": "left"}, "task.angles: 'left' is not an angle from -360 to 360 degrees"),
        ({"angles": (0, 1800)}, "task.angles: 1800 is not an angle"),
        ({"angles": (0, float("nan"))}, "task.angles: nan is not an angle"),
        ({"angles": (0, True)}, "task.angles: True is not an angle"),
        ({"angles": (0, 360)}, "two clusters would have the same rotation"),
        ({"angles": ()}, "task.angles is empty"),
        ({"sizes": (2, 1, 1)}, "3 sizes for 2 angles"),
        ({"sizes": (2, 1)}, "add up to 3 nodes, but there are 4"),
        ({"sizes": (-1, 5)}, "are not valid numbers of nodes"),
        ({"sizes": (1.5, 2.5)}, "task.sizes = (1.5, 2.5) is not a list of whole numbers"),
        ({"sizes": "a,b"}, "task.sizes = 'a,b' is not a list of whole numbers"),
        ({"samples": 0}, "task.samples = 0 is not a whole number from 1 on"),
        ({"samples": 90, "val": 20}, "can have only 100 images of cifar10 in all"),
        ({"val": -1}, "task.val = -1 is not a whole number from 0 on"),
        (
            {"partition": "dirichlt", "alpha": 1},
            "task.partition = 'dirichlt': there is no such name; did you mean",
        ),
        ({"partition": "dirichlet", "alpha": 0}, "task.alpha = 0 is not a number above zero"),
        ({"partition": "dirichlet"}, "needs task.alpha"),
        ({"model": "pens_cn"}, "unknown model 'pens_cn'; did you mean 'pens_cnn'?"),
        ({"model": "facade_lenet,nothing"}, "unknown model 'nothing'"),
        ({"model": ()}, "task.model is empty"),
        ({"dataset": "cifr10"}, "unknown data set 'cifr10'; did you mean 'cifar10'?"),
        ({"tests": 31}, "each of 2 clusters has 30 test images"),
        ({"tests": "some"}, "task.tests = 'some' is neither 'part' nor 'all'"),
        ({"auxiliary": 400}, "neither a share from 0 to below 1 nor a number below 400"),
        ({"auxiliary": 1.5}, "a number of samples must be whole"),
        ({"auxiliary": 10, "auxiliary_samples": 11}, "only 10 images are set aside"),
        ({"size": 16}, "the images of cifar10 have a fixed size"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(root: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        place(root, 0, 4, **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_places_of_an_unknown_number_have_clusters_in_turn(root: Path) -> None:
    assert [place(root, index, None, samples=8).cluster for index in range(4)] == [0, 1, 0, 1]


def test_more_nodes_than_images_are_one_line(root: Path) -> None:
    with pytest.raises(ConfigError, match="400 samples are too few for 500 nodes"):
        place(root, 0, 500)
    with pytest.raises(ConfigError, match="needs images of 22 pixels or more"):
        place(root / "imagenette2-160", name="images", size=16, model="pens_cnn")


@pytest.mark.parametrize("name", PAPERS)
def test_every_named_task_has_the_same_options_and_its_own_values(name: str) -> None:
    function = find(name)
    assert list(inspect.signature(function).parameters) == list(inspect.signature(images).parameters)


def test_the_tasks_are_listed_and_checked_without_torch() -> None:
    code = f"""
        import sys
        from pfl_node.learning.task import Place
        from pfl_node.learning.tasks import arguments, find
        from pfl_node.settings import TaskSettings
        for name in {PAPERS!r}:
            arguments(find(name), TaskSettings(name=name, samples=3), Place(0, 1, 0, ""))
        assert not {{"torch", "torchvision", "PIL"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "model"),
    [
        ("cifar10", "cifar-10-batches-py", "facade_lenet"),
        ("cifar10", "cifar-10-batches-py", "pens_cnn"),
        ("mnist", "MNIST", "mnist_2nn"),
    ],
)
def test_real_data_is_split_over_32_nodes_and_learned_from(name: str, folder: str, model: str) -> None:
    if not (REAL / folder).is_dir():
        pytest.skip(f"there is no {name} in {REAL} (PFL_DATA says where)")
    options: dict[str, Any] = {"angles": (0, 180), "sizes": (30, 2), "model": model, "val": 100}
    tasks = [complete(images(i, 32, 0, "", dataset=name, root=str(REAL), **options), 0) for i in range(32)]
    assert [task.cluster for task in tasks] == [0] * 30 + [1] * 2
    total = len(load(name, REAL).train.y)
    assert sum(len(task.train.y) + 100 for task in tasks) == total
    assert {len(task.train.y) // 10 for task in tasks} == {(total // 32 - 100) // 10}
    for task in (tasks[0], tasks[31]):
        me = learner(task)
        start = me.fresh(0)
        trained = me.train(start, seed=0, steps=100)
        before, after = me.score([start, trained], split="test", samples=1000)
        assert after.loss < before.loss
