"""Read image files as arrays: CIFAR-10 batches, IDX files of MNIST, folders of pictures. No file content is
executed."""

from __future__ import annotations

import gzip
import pickletools
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pfl_node.errors import TaskError

Pixels = npt.NDArray[np.uint8]  # images x height x width x channels
Labels = npt.NDArray[np.int64]

CIFAR = (3, 32, 32)
UNSIGNED_BYTES = 8  # the type in an IDX file's third byte
PICTURES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}


class Missing(Exception):
    """A file does not exist; the text says which."""


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"cannot read {path}: {error}") from error


def cifar(path: Path) -> tuple[Pixels, Labels]:
    """One batch. The file is a pickle, whose opcodes are scanned and not executed."""
    raw = _bytes(path)
    try:
        pixels, labels = _look_through(raw)
    except (ValueError, IndexError) as error:
        raise TaskError(f"{path} is not a CIFAR-10 batch: {str(error).splitlines()[0]}") from None
    if not labels or len(pixels) != len(labels) * np.prod(CIFAR):
        raise TaskError(f"{path} is not a CIFAR-10 batch: {len(pixels)} bytes of pixels, {len(labels)} labels")
    images = np.frombuffer(pixels, np.uint8).reshape(-1, *CIFAR)
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), np.array(labels, np.int64)


def _look_through(raw: bytes) -> tuple[bytes, list[int]]:
    """The labels follow the text "labels"; the pixels are the longest text after "data"."""
    pixels, labels, section = b"", list[int](), ""
    for opcode, value, _ in pickletools.genops(raw):
        if isinstance(value, str | bytes) and not opcode.name.startswith("GLOBAL"):
            text = value if isinstance(value, bytes) else value.encode("latin-1")
            if text in (b"labels", b"data", b"filenames", b"batch_label"):
                section = text.decode()
            elif section == "data" and len(text) > len(pixels):
                pixels = text
        elif section == "labels" and isinstance(value, int) and opcode.name.startswith(("BININT", "INT", "LONG")):
            labels.append(value)
    return pixels, labels


def idx(folders: Sequence[Path], name: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """The file of that name, gzipped or not, in the first folder that has it."""
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return _unpacked(path, dimensions)
    raise Missing(f"no {name} (nor {name}.gz) in {' or '.join(map(str, folders))}")


def _unpacked(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    raw = _bytes(path)
    if raw[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)) or len(raw) < 4 + 4 * dimensions:
        raise TaskError(f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = [int(n) for n in np.frombuffer(raw, ">u4", dimensions, offset=4)]
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
    if len(values) != np.prod(shape, dtype=np.int64):
        raise TaskError(f"{path} is damaged: {len(values)} bytes instead of {' x '.join(map(str, shape))}")
    return values.reshape(shape).copy()


def classes_in(folder: Path) -> list[str]:
    """The folders of the classes, sorted by name."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise Missing(f"no folder for a class in {folder}")
    return classes


def folder(where: Path, classes: Sequence[str], size: int) -> tuple[Pixels, Labels]:
    """All pictures in the folders of the classes, in RGB: the shorter side is scaled to `size`, and the centre is
    cropped."""
    if unknown := sorted(set(classes_in(where)) - set(classes)):
        raise TaskError(f"{where} has a class {unknown[0]!r} that is not in {where.parent / 'train'}")
    files = [(path, label) for label, name in enumerate(classes) for path in _pictures(where / name)]
    if not files:
        raise Missing(f"no picture in {where}/*/ ({', '.join(sorted(PICTURES))})")
    x = np.empty((len(files), size, size, 3), np.uint8)
    for row, (path, _) in zip(x, files, strict=True):
        row[:] = _picture(path, size)
    return x, np.array([label for _, label in files], np.int64)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())


def _picture(path: Path, size: int) -> npt.NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise TaskError("pictures are read with Pillow: pip install 'pfl-node[vision]'") from None
    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:  # SyntaxError: a broken PNG
        raise TaskError(f"{path} cannot be read as a picture: {str(error).splitlines()[0]}") from None
    scale = size / min(picture.size)
    width, height = (max(size, int(side * scale)) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))
