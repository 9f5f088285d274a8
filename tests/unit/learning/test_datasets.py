from __future__ import annotations

import gzip
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torchvision

from pfl_node.errors import ConfigError, PflError, TaskError
from pfl_node.learning import datasets
from pfl_node.learning.datasets import load
from pfl_node.learning.readers import cifar
from tests.unit.learning.tiny_datasets import (
    cifar_batch,
    idx,
    random_images,
    write_cifar10,
    write_folders,
    write_mnist,
)

REAL = Path(os.environ.get("PFL_DATA") or Path(__file__).parents[4] / "shared" / "data")


@pytest.fixture(autouse=True)
def no_other_places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Data that this machine may have is not looked at, and nothing is kept."""
    monkeypatch.delenv("PFL_DATA", raising=False)
    monkeypatch.setattr(datasets, "DEBIAN", Path("/nowhere/fashion-mnist"))
    yield
    datasets._load.cache_clear()


def complaint(name: str, root: Path, *, download: bool = False, size: int | None = None) -> str:
    with pytest.raises(PflError) as error:
        load(name, root, size=size, download=download)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_cifar10s_batches_are_read_in_order_with_the_channels_last(tmp_path: Path) -> None:
    x, y = write_cifar10(tmp_path)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.x, x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(data.train.y, y)
    assert (data.size, data.channels, data.classes, len(data.test.y)) == (32, 3, 10, 20)
    assert data.train.x.flags.c_contiguous


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_and_its_like_are_read_packed_or_not(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    x, y = write_mnist(tmp_path / folder / "raw", packed=packed)
    data = load(name, tmp_path)
    np.testing.assert_array_equal(data.train.x[..., 0], x)
    np.testing.assert_array_equal(data.train.y, y)
    assert (data.size, data.channels, data.classes, len(data.test.y)) == (28, 1, 10, 20)


def test_the_letters_are_counted_from_zero(tmp_path: Path) -> None:
    names = ("emnist-letters-train", "emnist-letters-test")
    write_mnist(tmp_path / "EMNIST" / "raw", train=52, test=26, classes=26, names=names, first=1)
    data = load("emnist", tmp_path)
    assert (data.train.y.min(), data.train.y.max(), data.classes) == (0, 25, 26)


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    x, _ = write_mnist(tmp_path / "debian", packed=True)
    np.testing.assert_array_equal(load("fashion_mnist", tmp_path).train.x[..., 0], x)


def test_a_folder_that_is_not_there_is_told_even_where_debian_has_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    write_mnist(tmp_path / "debian")
    assert complaint("fashion_mnist", tmp_path / "none").startswith(
        f"data set fashion_mnist: no folder {tmp_path}/none; set its directory: "
    )


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_for_each_class_is_read_at_one_size(tmp_path: Path, test: str) -> None:
    write_folders(tmp_path, ("cat", "ant", "dog"), each=4, test=test)
    data = load("image_folder", tmp_path, size=16)
    assert data.train.x.shape == data.test.x.shape == (12, 16, 16, 3)
    assert data.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert load("image_folder", tmp_path).size == 64


def test_imagenette_is_read_from_the_smallest_there_is(tmp_path: Path) -> None:
    write_folders(tmp_path / "imagenette2-320", test="val")
    assert load("imagenette", tmp_path, size=8).train.x.shape == (12, 8, 8, 3)
    write_folders(tmp_path / "imagenette2-160", each=3, test="val")
    assert len(load("imagenette", tmp_path, size=9).train.x) == 6


def test_a_data_set_is_read_once_for_all_nodes_and_nobody_can_change_it(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    data = load("mnist", tmp_path)
    assert load("mnist", str(tmp_path)) is data
    with pytest.raises(ValueError, match="read-only"):
        data.train.x[0] = 0


def test_the_place_comes_from_the_task_then_from_the_environment_then_it_is_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"in {tmp_path}/data/MNIST/raw;" in complaint("mnist", None)  # type: ignore[arg-type]
    monkeypatch.setenv("PFL_DATA", "/from/environment")
    assert "no folder /from/environment;" in complaint("mnist", None)  # type: ignore[arg-type]
    assert "no folder /from/task;" in complaint("mnist", Path("/from/task"))


@pytest.mark.parametrize(
    ("name", "looked"),
    [
        ("cifar10", "no file {root}/cifar-10-batches-py/data_batch_1"),
        ("mnist", "no train-images-idx3-ubyte (nor train-images-idx3-ubyte.gz) in {root}/MNIST/raw"),
        ("fashion_mnist", "in {root}/FashionMNIST/raw or /nowhere/fashion-mnist"),
        ("emnist", "no emnist-letters-train-images-idx3-ubyte"),
        ("imagenette", "no imagenette2-160, imagenette2-320 or imagenette2 in {root}"),
    ],
)
def test_missing_data_is_one_line_with_where_it_looked_and_what_to_do(
    tmp_path: Path, name: str, looked: str
) -> None:
    text = complaint(name, tmp_path)
    assert text.startswith(f"data set {name}: ")
    assert looked.format(root=tmp_path) in text
    assert text.endswith(
        "set its directory: --set task.root=DIR or PFL_DATA=DIR; or download it: --set task.download=true"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_of_pictures_cannot_be_fetched(tmp_path: Path) -> None:
    text = complaint("image_folder", tmp_path)
    assert text == (
        f"data set image_folder: no folder {tmp_path}/train (wanted: train/CLASS/IMAGE and test/CLASS/IMAGE); "
        "set its directory: --set task.root=DIR"
    )
    (tmp_path / "train").mkdir()
    assert "neither" in complaint("image_folder", tmp_path)
    (tmp_path / "test").mkdir()
    assert "no folder for a class in" in complaint("image_folder", tmp_path)
    (tmp_path / "train" / "cat").mkdir()
    (tmp_path / "test" / "cat").mkdir()
    assert "no picture in" in complaint("image_folder", tmp_path)


def test_a_class_that_is_only_tested_is_a_mistake(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "test" / "cow").mkdir()
    assert f"{tmp_path}/test has a class 'cow' that is not in {tmp_path}/train" in complaint(
        "image_folder", tmp_path
    )


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "train" / "cat" / "0.png").write_text("no picture")
    assert f"{tmp_path}/train/cat/0.png cannot be read as a picture" in complaint("image_folder", tmp_path)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "is not an IDX file"),
        (idx(np.zeros((2, 3), np.uint8)), "is not an IDX file of bytes with 3 dimensions"),
        (idx(np.zeros((2, 3, 3), np.uint8))[:-1], "is damaged: 17 bytes instead of 2 x 3 x 3"),
        (idx(np.zeros((2, 28, 28), np.uint8)), "has 2 images but 60 labels"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, raw: bytes, text: str) -> None:
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(raw)
    assert text in complaint("mnist", tmp_path)


def test_a_damaged_packed_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder, packed=True)
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(b"x" * 1000)[:-12])
    assert f"cannot read {file}" in complaint("mnist", tmp_path)


def test_what_a_batch_of_cifar10_would_run_is_not_run(tmp_path: Path) -> None:
    hostile = b"cos\nmkdir\n(S'" + str(tmp_path / "made").encode() + b"'\ntR."
    file = tmp_path / "batch"
    file.write_bytes(hostile)
    with pytest.raises(TaskError, match=r"batch is not a CIFAR-10 batch: 0 bytes of pixels, 0 labels"):
        cifar(file)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("cut", [10, 200, 5000])
def test_a_cut_batch_of_cifar10_is_named(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "batch"
    file.write_bytes(cifar_batch(*random_images(4, (3, 32, 32), 10, seed=0))[:-cut])
    if cut == 10:  # names of files are of no use to us, but half of them is half a file
        file.write_bytes(file.read_bytes() + b"\xff")
    with pytest.raises(TaskError, match="is not a CIFAR-10 batch"):
        cifar(file)


def test_mistakes_in_name_and_size_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        load("cifar", tmp_path)
    with pytest.raises(ConfigError, match="the images of mnist have a fixed size"):
        load("mnist", tmp_path, size=32)
    with pytest.raises(ConfigError, match=r"task.size = 0 is not a whole number of pixels"):
        load("image_folder", tmp_path, size=0)


def test_what_is_there_is_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_fetch", lambda *_: pytest.fail("there was no need"))
    write_mnist(tmp_path / "MNIST" / "raw")
    assert load("mnist", tmp_path, download=True).classes == 10


def test_what_is_missing_is_downloaded_by_one_process_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "_fetch", lambda name, root: write_mnist(root / "MNIST" / "raw"))
    assert len(load("mnist", tmp_path / "new", download=True).train.y) == 60


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise RuntimeError("Error downloading\nno network")

    monkeypatch.setattr(torchvision.datasets, "MNIST", no_network)
    text = complaint("mnist", tmp_path, download=True)
    assert text == f"data set mnist: cannot be downloaded to {tmp_path}: Error downloading"


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot download to" in complaint("mnist", tmp_path / "file" / "below", download=True)


def test_reading_needs_neither_torch_nor_torchvision(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    code = f"""
        import sys
        from pfl_node.learning.datasets import load
        load("cifar10", {str(tmp_path)!r})
        assert not {{"torch", "torchvision", "PIL"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


# -- beside torchvision ------------------------------------------------------------------------------------------


def test_torchvision_reads_the_same_digits_and_pictures(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    expected = torchvision.datasets.MNIST(str(tmp_path), train=True)
    ours = load("mnist", tmp_path)
    np.testing.assert_array_equal(ours.train.x[..., 0], expected.data.numpy())
    np.testing.assert_array_equal(ours.train.y, expected.targets.numpy())

    write_folders(tmp_path / "pictures")
    resize, crop = torchvision.transforms.Resize(17), torchvision.transforms.CenterCrop(17)
    transforms = torchvision.transforms.Compose([resize, crop])
    folder = torchvision.datasets.ImageFolder(str(tmp_path / "pictures" / "train"), transform=transforms)
    ours = load("image_folder", tmp_path / "pictures", size=17)
    np.testing.assert_array_equal(ours.train.x, np.stack([np.asarray(picture) for picture, _ in folder]))
    assert ours.train.y.tolist() == folder.targets


@pytest.mark.slow
def test_torchvision_reads_the_same_real_cifar10() -> None:
    if not (REAL / "cifar-10-batches-py").is_dir():
        pytest.skip(f"there is no CIFAR-10 in {REAL} (PFL_DATA says where)")
    ours = load("cifar10", REAL)
    for images, train in ((ours.train, True), (ours.test, False)):
        expected = torchvision.datasets.CIFAR10(str(REAL), train=train)
        np.testing.assert_array_equal(images.x, expected.data)
        np.testing.assert_array_equal(images.y, expected.targets)


@pytest.mark.slow
def test_the_real_mnist_has_the_known_number_of_each_digit() -> None:
    if not (REAL / "MNIST" / "raw").is_dir():
        pytest.skip(f"there is no MNIST in {REAL} (PFL_DATA says where)")
    ours = load("mnist", REAL)
    known = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(ours.train.y).tolist() == known
    assert ours.train.x.mean() / 255 == pytest.approx(0.13066, abs=1e-5)
    assert ours.test.x.mean() / 255 == pytest.approx(0.13252, abs=1e-5)
