"""The data sets of the papers: 8-bit images and labels, read once for all nodes of a process.

The files are laid out as by torchvision, which is imported only to download them: it takes 2 s of CPU time and 160
MB.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfl_node.errors import ConfigError, TaskError, nearest
from pfl_node.learning import readers
from pfl_node.learning.readers import Labels, Missing, Pixels

ROOT = "data"  # used if neither the task nor the environment names one
VARIABLE = "PFL_DATA"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # from the package dataset-fashion-mnist
FOLDER_SIZE = 64  # pixels per side, for images of different sizes

_reading = threading.Lock()


class Images(NamedTuple):
    """images x height x width x channels, and class numbers."""

    x: Pixels
    y: Labels


@dataclass(frozen=True, eq=False)
class Dataset:
    """A whole data set; its arrays are read-only."""

    name: str
    train: Images
    test: Images
    classes: int

    @property
    def size(self) -> int:
        return int(self.train.x.shape[1])

    @property
    def channels(self) -> int:
        return int(self.train.x.shape[3])


@dataclass(frozen=True)
class Source:
    """How to read a data set: a function of (root, size)."""

    read: Callable[[Path, int], tuple[Images, Images]]
    theirs: str | None = None  # class of torchvision that downloads it
    folders: bool = False  # its images have different sizes


def load(name: str, root: str | Path | None = None, *, size: int | None = None, download: bool = False) -> Dataset:
    """The data set under `root` (None: $PFL_DATA, else ./data)."""
    if name not in SOURCES:
        raise ConfigError(f"unknown data set {name!r}; {nearest(str(name), SOURCES)}")
    source = SOURCES[name]
    if size is not None and not source.folders:
        raise ConfigError(f"task.size = {size}: the images of {name} have a fixed size, leave it out")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"task.size = {size!r} is not a whole number of pixels above zero")
    said = root or os.environ.get(VARIABLE)
    place = Path(said or ROOT).expanduser().absolute()
    if said and not download and not place.is_dir():  # an error even if the system has a copy
        raise TaskError(_advice(name, Missing(f"no folder {place}")))
    with _reading:
        return _load(name, place, size or FOLDER_SIZE, download)


@lru_cache(maxsize=4)
def _load(name: str, root: Path, size: int, download: bool) -> Dataset:
    source = SOURCES[name]
    try:
        train, test = source.read(root, size)
    except Missing as missing:
        if not download or source.theirs is None:
            raise TaskError(_advice(name, missing)) from None
        with _alone(root):
            _fetch(name, root)
        train, test = source.read(root, size)
    for images in (train, test):
        for array in images:
            array.flags.writeable = False
    return Dataset(name, train, test, classes=int(max(train.y.max(), test.y.max())) + 1)


def _advice(name: str, missing: Missing) -> str:
    do = "set its directory: --set task.root=DIR"
    if SOURCES[name].theirs:
        do += f" or {VARIABLE}=DIR; or download it: --set task.download=true"
    return f"data set {name}: {missing}; {do}"


def _cifar10(root: Path, _: int) -> tuple[Images, Images]:
    folder = root / "cifar-10-batches-py"
    train = [readers.cifar(folder / f"data_batch_{n}") for n in range(1, 6)]
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Images(x, y), Images(*readers.cifar(folder / "test_batch"))


def _mnist(root: Path, _: int) -> tuple[Images, Images]:
    return _idx([root / "MNIST" / "raw"], "train", "t10k")


def _fashion_mnist(root: Path, _: int) -> tuple[Images, Images]:
    return _idx([root / "FashionMNIST" / "raw", DEBIAN], "train", "t10k")


def _emnist(root: Path, _: int) -> tuple[Images, Images]:
    """The letters, in both cases, mirrored as in the files."""
    parts = _idx([root / "EMNIST" / "raw"], "emnist-letters-train", "emnist-letters-test")
    return Images(parts[0].x, parts[0].y - 1), Images(parts[1].x, parts[1].y - 1)  # labels start at 1


def _idx(folders: list[Path], train: str, test: str) -> tuple[Images, Images]:
    found = [_pair(folders, name) for name in (train, test)]
    return found[0], found[1]


def _pair(folders: list[Path], name: str) -> Images:
    x = readers.idx(folders, f"{name}-images-idx3-ubyte", dimensions=3)
    y = readers.idx(folders, f"{name}-labels-idx1-ubyte", dimensions=1)
    if len(x) != len(y) or not len(x):
        raise TaskError(f"{name} in {folders[0]} has {len(x)} images but {len(y)} labels")
    return Images(x[..., None], y.astype(np.int64))


def _imagenette(root: Path, size: int) -> tuple[Images, Images]:
    names = ("imagenette2-160", "imagenette2-320", "imagenette2")
    there = [root / name for name in names if (root / name).is_dir()]
    if not there:
        raise Missing(f"no {', '.join(names[:-1])} or {names[-1]} in {root}")
    return _folders(there[0], size)


def _folders(root: Path, size: int) -> tuple[Images, Images]:
    """One folder per class, in train/ and in test/ or val/."""
    train, (test, val) = root / "train", (root / "test", root / "val")
    if not train.is_dir():
        raise Missing(f"no folder {train} (wanted: train/CLASS/IMAGE and test/CLASS/IMAGE)")
    if not test.is_dir() and not val.is_dir():
        raise Missing(f"neither {test} nor {val}")
    classes = readers.classes_in(train)
    return (
        Images(*readers.folder(train, classes, size)),
        Images(*readers.folder(test if test.is_dir() else val, classes, size)),
    )


SOURCES: dict[str, Source] = {
    "cifar10": Source(_cifar10, "CIFAR10"),
    "fashion_mnist": Source(_fashion_mnist, "FashionMNIST"),
    "mnist": Source(_mnist, "MNIST"),
    "emnist": Source(_emnist, "EMNIST"),
    "imagenette": Source(_imagenette, "Imagenette", folders=True),
    "image_folder": Source(_folders, folders=True),
}
HOW = {"EMNIST": {"split": "letters"}, "Imagenette": {"size": "160px"}}  # arguments for torchvision


def _fetch(name: str, root: Path) -> None:
    theirs = SOURCES[name].theirs
    assert theirs is not None
    try:
        import torchvision
    except ImportError:
        raise TaskError(
            f"data set {name}: torchvision is needed to download it: pip install 'pfl-node[vision]'"
        ) from None
    try:
        getattr(torchvision.datasets, theirs)(str(root), download=True, **HOW.get(theirs, {}))
    except (OSError, RuntimeError, ValueError) as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(f"data set {name}: cannot be downloaded to {root}: {text}") from error


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Only one process downloads at a time."""
    import fcntl

    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".download.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise TaskError(f"cannot download to {root}: {error.strerror or error}") from error
