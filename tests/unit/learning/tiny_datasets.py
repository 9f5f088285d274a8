"""Tiny data sets on disk, in the layout of the real ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def random_images(n: int, shape: tuple[int, ...], classes: int, seed: int) -> tuple[Bytes, Bytes]:
    """Noise, and labels that all occur as often."""
    chance = np.random.default_rng(seed)
    return chance.integers(0, 256, (n, *shape), dtype=np.uint8), (np.arange(n) % classes).astype(np.uint8)


def write_cifar10(root: Path, train: int = 100, test: int = 20, classes: int = 10) -> tuple[Bytes, Bytes]:
    """All of the training images and labels, as they are in five files; the images are n x 3 x 32 x 32."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    x, y = random_images(train, (3, 32, 32), classes, seed=1)
    for n in range(5):
        part = slice(n * train // 5, (n + 1) * train // 5)
        (folder / f"data_batch_{n + 1}").write_bytes(cifar_batch(x[part], y[part]))
    (folder / "test_batch").write_bytes(cifar_batch(*random_images(test, (3, 32, 32), classes, seed=2)))
    return x, y


def cifar_batch(x: Bytes, y: Bytes) -> bytes:
    """A dictionary of batch_label, labels, data and filenames, opcode by opcode as the real files have them."""
    data = x.tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(" + _text(b"batch_label") + b"q\x02" + _text(b"training batch 1 of 5") + b"q\x03",
            _text(b"labels") + b"q\x04]q\x05(" + b"".join(b"K" + bytes([n]) for n in y) + b"e",
            _text(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\t",
            _text(b"b") + b"q\n\x87q\x0bRq\x0c(K\x01M" + struct.pack("<H", len(x)) + b"M\x00\x0c\x86q\r",
            b"cnumpy\ndtype\nq\x0e" + _text(b"u1") + b"q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03" + _text(b"|"),
            b"q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b\x89T" + struct.pack("<i", len(data)) + data,
            b"q\x14tq\x15b" + _text(b"filenames") + b"q\x16]q\x17(",
            b"".join(_text(b"picture_%d.png" % n) for n in range(len(x))) + b"eu.",
        ]
    )


def _text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def write_mnist(
    folder: Path,
    train: int = 60,
    test: int = 20,
    classes: int = 10,
    *,
    names: tuple[str, str] = ("train", "t10k"),
    first: int = 0,
    packed: bool = False,
) -> tuple[Bytes, Bytes]:
    """The training images and labels. Labels begin with `first`."""
    folder.mkdir(parents=True)
    both = [random_images(n, (28, 28), classes, seed=n) for n in (train, test)]
    for name, (x, y) in zip(names, both, strict=True):
        for kind, values in (("images-idx3", x), ("labels-idx1", y + np.uint8(first))):
            raw = idx(values)
            path = folder / f"{name}-{kind}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw, mtime=0))
            else:
                path.write_bytes(raw)
    return both[0]


def idx(values: Bytes) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_folders(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6, test: str = "test"
) -> None:
    """Pictures wider than high, in a folder for each class."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for part in ("train", test):
        for name in classes:
            (root / part / name).mkdir(parents=True)
            for n in range(each):
                picture = chance.integers(0, 256, (40, 52, 3), dtype=np.uint8)
                Image.fromarray(picture).save(root / part / name / f"{n}.png")
