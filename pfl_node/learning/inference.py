"""Use a personal model: read inputs from files, predict, export."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning.columns import with_inputs_of
from pfl_node.learning.personal_model import PersonalModel
from pfl_node.learning.readers import PICTURES
from pfl_node.learning.rows import Rows
from pfl_node.learning.samples import Tree, call, leaves, take
from pfl_node.plugin import in_a_line

Array = npt.NDArray[Any]
FORMATS = "a .npy, .npz or .csv file, or a folder of pictures"


def example_of(personal: PersonalModel) -> Tree:
    """The inputs of two training samples, as the model receives them."""
    data = with_inputs_of(personal.module, personal.task).train
    if isinstance(data, Rows):
        chosen = [0, min(1, len(data) - 1)]
        return data.batch(data.raw(chosen), chosen).x
    return take(data.x, slice(2))


# -- inputs ----------------------------------------------------------------------------------------------------


def read_inputs(path: Path, example: Tree) -> tuple[list[str], Tree]:
    """Names and inputs of the samples, in the structure and types of the example."""
    if path.is_dir():
        return _pictures(path, _only(example, path))
    if not path.is_file():
        raise ConfigError(f"there is no {path}: give {FORMATS}")
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            x: Tree = _fitting(np.load(path, allow_pickle=False), _only(example, path), str(path))
        elif kind == ".npz":
            x = _archive(path, example)
        elif kind == ".csv":
            x = _fitting(_table(path), _only(example, path), str(path))
        else:
            raise ConfigError(f"{path}: give {FORMATS}")
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"cannot read {path}: {in_a_line(error)}") from error
    return [str(n) for n in range(len(leaves(x)[0]))], x


def _only(example: Tree, path: Path) -> Tensor:
    if isinstance(example, Tensor):
        return example
    names = list(example) if isinstance(example, Mapping) else [str(n) for n in range(len(leaves(example)))]
    raise ConfigError(
        f"{path}: the model takes several inputs: give an .npz file with {', '.join(map(str, names))}"
    )


def _archive(path: Path, example: Tree) -> Tree:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}

    def taken(name: str, like: Tensor) -> Tensor:
        if name not in arrays:
            raise ConfigError(f"{path} has no array {name!r}: it has {', '.join(sorted(arrays))}")
        return _fitting(arrays[name], like, f"{name} of {path}")

    if isinstance(example, Mapping):
        return {name: taken(str(name), like) for name, like in example.items()}
    if isinstance(example, tuple):
        names = [str(n) if str(n) in arrays else f"arr_{n}" for n in range(len(example))]
        return tuple(taken(name, like) for name, like in zip(names, example, strict=True))
    return taken(next(iter(arrays), "x"), _only(example, path))


def _fitting(array: Array, like: Tensor, where: str) -> Tensor:
    wanted = tuple(like.shape[1:])
    if array.ndim != like.ndim and array.ndim == 2 and array.shape[1] == like[0].numel():
        array = array.reshape(-1, *wanted)
    if array.ndim != like.ndim:
        raise ConfigError(f"{where} has the shape {array.shape}: the model takes (samples, {_sizes(wanted)})")
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{where} is {array.dtype}: only numbers are supported")
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.dtype)


def _sizes(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _table(path: Path) -> Array:
    """The numbers of a CSV file; a first line that is not all numbers is a header."""
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and not all(map(_is_number, rows[0])):
        rows = rows[1:]
    for number, row in enumerate(rows, 1):
        wrong = next((cell for cell in row if not _is_number(cell)), None)
        if wrong is not None or len(row) != len(rows[0]):
            problem = f"{wrong!r} is not a number" if wrong is not None else f"it has {len(row)} columns"
            raise ConfigError(f"{path}, sample {number}: {problem}")
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pictures(folder: Path, like: Tensor) -> tuple[list[str], Tensor]:
    """Pictures, resized to the model's input; values from 0 to 1 if the input is float."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("pictures need Pillow: pip install 'pfl-node[vision]'") from error
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURES)
    if not files:
        raise ConfigError(f"{folder} has no pictures")
    if like.ndim != 4 or like.shape[1] not in (1, 3):
        raise ConfigError(f"{folder}: the model takes ({_sizes(like.shape[1:])}), not pictures")
    rows = []
    for file in files:
        try:
            with Image.open(file) as image:
                sized = image.convert("L" if like.shape[1] == 1 else "RGB").resize((like.shape[3], like.shape[2]))
                rows.append(
                    np.asarray(sized, np.uint8).reshape(like.shape[2], like.shape[3], -1).transpose(2, 0, 1)
                )
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {in_a_line(error)}") from error
    x = torch.from_numpy(np.stack(rows))
    return [str(f.relative_to(folder)) for f in files], x.float() / 255 if like.is_floating_point() else x


# -- outputs ---------------------------------------------------------------------------------------------------


def predict(module: nn.Module, x: Tree, batch: int = 64) -> Array:
    """The model's outputs for all samples."""
    n, found = len(leaves(x)[0]), []
    with torch.inference_mode():
        for start in range(0, n, batch):
            chosen = slice(start, start + batch)
            try:
                found.append(_tensor(call(module, take(x, chosen))))
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise TaskError(f"the model does not accept these inputs: {in_a_line(error)}") from error
    return torch.cat(found).float().numpy() if found else np.empty(0, np.float32)


def _tensor(output: Any) -> Tensor:
    """The scores in what a model returns: a tensor, the first of several, or Hugging Face's `logits`."""
    if isinstance(output, Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return _tensor(logits)
    if isinstance(output, Mapping):
        return _tensor(output.get("logits", next(iter(output.values()))))
    if isinstance(output, tuple | list) and output:
        return _tensor(output[0])
    raise TaskError(f"the model returns {type(output).__name__}, which is not a tensor")


def is_classifier(personal: PersonalModel, outputs: Array) -> bool:
    """With the default loss, two-dimensional outputs are scores of classes."""
    return personal.task.loss is None and outputs.ndim == 2 and outputs.shape[1] > 1


def table_of(names: Sequence[str], outputs: Array, *, classes: bool) -> Iterator[list[str]]:
    """Header and rows: the sample, the predicted class and its probabilities, or the outputs."""
    flat = outputs.reshape(len(outputs), -1)
    if classes:
        scores = np.exp(flat - flat.max(1, keepdims=True))
        shares = scores / scores.sum(1, keepdims=True)
        yield ["sample", "class", *(f"p{c}" for c in range(flat.shape[1]))]
        for name, row in zip(names, shares, strict=True):
            yield [name, str(int(row.argmax())), *(f"{p:.6g}" for p in row)]
        return
    yield ["sample", *(f"y{c}" for c in range(flat.shape[1]))]
    for name, row in zip(names, flat, strict=True):
        yield [name, *(f"{value:.6g}" for value in row)]


def write_table(file: IO[str], rows: Iterator[list[str]]) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)


# -- export ----------------------------------------------------------------------------------------------------


def export_onnx(module: nn.Module, example: Tree, path: Path) -> list[str]:
    """Write an ONNX file whose first dimension is the number of samples. Returns the names of the inputs."""
    try:
        import onnx  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("export --onnx needs packages: pip install 'pfl-node[onnx]'") from error
    positional = () if isinstance(example, Mapping) else example if isinstance(example, tuple) else (example,)
    named = dict(example) if isinstance(example, Mapping) else {}
    names = list(named) or list(inspect.signature(module.forward).parameters)[: len(positional)]
    sizes: dict[str, Any] = {name: {0: torch.export.Dim.DYNAMIC} for name in names}
    try:
        program = torch.onnx.export(
            module, positional, kwargs=named, dynamic_shapes=sizes, input_names=names, dynamo=True, verbose=False
        )
        assert program is not None
        program.save(str(path))
    except Exception as error:
        raise TaskError(f"the model cannot be exported: {in_a_line(error)}") from error
    return names


def export_peft(module: Any, folder: Path) -> None:
    """Write the adapter of a PEFT model as `PeftModel.from_pretrained` reads it."""
    if not (hasattr(module, "peft_config") and hasattr(module, "save_pretrained")):
        raise ConfigError(f"the model is a {type(module).__name__}, not a PEFT model: use --onnx or pfl_node.load")
    module.save_pretrained(str(folder))
