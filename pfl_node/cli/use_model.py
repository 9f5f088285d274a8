"""The verbs that use the personal model in a data directory: predict, export."""

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from pfl_node.learning.personal_model import PersonalModel

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The data directory of a node, also of a running one.")
]
Input = Annotated[
    Path, typer.Argument(metavar="INPUT", help="A .npy, .npz or .csv file, or a folder of pictures.")
]
Result = Annotated[Path | None, typer.Option(metavar="FILE", help="A .csv or .npy file; default: CSV on stdout.")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Samples per step.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="An option of the task instead of the node's; may be repeated."
    ),
]

Best = Annotated[
    bool, typer.Option("--best", help="The model that was best on the validation data, not the last.")
]


def predict(
    directory: Directory,
    input: Input,
    out: Result = None,
    batch: Batch = 64,
    best: Best = False,
    sets: Options = None,
) -> None:
    """Predict with a node's personal model."""
    if out is not None and out.suffix not in (".csv", ".npy"):
        raise ConfigError(f"--out {out}: give a .csv or .npy file")
    personal = _personal(directory, sets, best=best)
    from pfl_node.learning import inference

    names, x = inference.read_inputs(input, inference.example_of(personal))
    outputs = inference.predict(personal.module, x, batch)
    rows = inference.table_of(names, outputs, classes=inference.is_classifier(personal, outputs))
    if out is None:
        inference.write_table(sys.stdout, rows)
        return
    try:
        if out.suffix == ".npy":
            import numpy as np

            np.save(out, outputs)
        else:
            with out.open("w", newline="") as file:
                inference.write_table(file, rows)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from error
    print(f"{len(names):,} samples: {out}")


def export(
    directory: Directory,
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an ONNX file.")] = None,
    peft: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a PEFT adapter.")] = None,
    best: Best = False,
    sets: Options = None,
) -> None:
    """Export a node's personal model."""
    if onnx is None and peft is None:
        raise ConfigError("choose what to write: --onnx FILE or --peft DIR")
    personal = _personal(directory, sets, best=best)
    from pfl_node.learning import inference

    if onnx is not None:
        names = inference.export_onnx(personal.module, inference.example_of(personal), onnx)
        print(f"{onnx}: inputs {', '.join(names)}; the first dimension is the number of samples")
    if peft is not None:
        inference.export_peft(personal.module, peft)
        print(f"{peft}: PeftModel.from_pretrained(base, {str(peft)!r}) loads it")


def _personal(directory: Path, sets: list[str] | None, *, best: bool) -> "PersonalModel":
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}: give the data directory of a node")
    from pfl_node.learning.personal_model import load_personal

    return load_personal(directory, best=best, **dict(map(_option, sets or ())))


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r} must be KEY=VALUE")
    try:
        return key.strip().removeprefix("task."), tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        return key.strip().removeprefix("task."), value
