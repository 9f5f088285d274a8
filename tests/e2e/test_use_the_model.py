"""docs/use-the-model.md runs as it is; predict and export handle every kind of input; mistakes are one line."""

from __future__ import annotations

import asyncio
import csv
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node.cli import main
from pfl_node.daemon import process
from pfl_node.learning.personal_model import load
from pfl_node.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "use-the-model.md"
BLOCK = re.compile(r"^```(python(?: file=(\S+))?)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    np.save("new.npy", np.zeros((4, 16), np.float32))
    np.savetxt("new.csv", np.zeros((4, 16)), delimiter=",", header=",".join("abcdefghijklmnop"), comments="")
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 8
    for kind, file, text in blocks:
        if file:
            Path(file).write_text(text)
        elif kind:
            exec(compile(text, "use-the-model.md", "exec"), {"__name__": "__main__"})
        else:
            for line in text.splitlines():
                words = shlex.split(line)[1:]
                if words[0].startswith("--"):  # a node
                    words += ["--log-level", "error"]
                assert main(words) == 0, (line, capsys.readouterr().err)
    said = capsys.readouterr().out
    assert "sample,class,p0,p1,p2\n0," in said
    assert "4 samples: predictions.csv" in said
    assert "('done', 'done')" in said or "['done', 'done']" in said
    rows = list(csv.reader(Path("predictions.csv").read_text().splitlines()))
    assert len(rows) == 5
    assert sum(map(float, rows[1][2:])) == pytest.approx(1.0, abs=1e-4)
    sys.modules.pop("ward", None)


CLINICS = """
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)
    def forward(self, image, table):
        return self.a(image) + self.b(table)

def images():
    x, y = rng.random((20, 3, 8, 8)).astype("float32"), np.arange(20) % 4
    return {"model": lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 4)), "train": (x, y)}

def both():
    x = {"image": rng.random((20, 3)).astype("float32"), "table": rng.random((20, 5)).astype("float32")}
    return {"model": Both, "train": (x, np.arange(20) % 4)}

def price():
    x = rng.random((20, 3)).astype("float32")
    return {"model": lambda: nn.Linear(3, 1), "train": (x, x.sum(1, keepdims=True)), "loss": nn.MSELoss()}
"""


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clinics")
    (folder / "clinics.py").write_text(CLINICS)
    for name in ("images", "both", "price"):
        settings = {
            "policy": {"name": "local"},
            "task": {"name": f"{folder / 'clinics.py'}:{name}"},
            "data_dir": folder / name,
            "rounds": 1,
            "log": {"level": "error"},
        }
        assert asyncio.run(process._run(Settings.model_validate(settings))) == 0
    return folder


def test_a_folder_of_pictures_is_resized_to_the_model(
    homes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in" / "b").mkdir(parents=True)
    image.new("RGB", (20, 10), (255, 0, 0)).save(tmp_path / "in" / "b" / "red.png")
    image.new("L", (8, 8), 255).save(tmp_path / "in" / "white.jpg")
    assert main(["predict", str(homes / "images"), str(tmp_path / "in")]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert [row[0] for row in rows] == ["sample", "b/red.png", "white.jpg"]
    red = torch.zeros(1, 3, 8, 8)
    red[:, 0] = 1.0
    shares = load(homes / "images")(red).softmax(1)[0].tolist()
    assert [float(p) for p in rows[1][2:]] == pytest.approx(shares, abs=1e-4)


def test_several_inputs_come_from_one_archive(homes: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", image=np.ones((3, 3)), table=np.zeros((3, 5)))
    out = tmp_path / "out.npy"
    assert main(["predict", str(homes / "both"), str(tmp_path / "in.npz"), "--out", str(out), "--batch", "2"]) == 0
    expected = load(homes / "both")(torch.ones(3, 3), torch.zeros(3, 5)).detach().numpy()
    assert np.load(out) == pytest.approx(expected, abs=1e-6)


def test_outputs_of_a_regression_are_not_classes(
    homes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text("0,0,0\n1,1,1\n")
    assert main(["predict", str(homes / "price"), str(tmp_path / "in.csv")]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert rows[0] == ["sample", "y0"]
    assert float(rows[2][1]) == pytest.approx(load(homes / "price")(torch.ones(1, 3)).item(), abs=1e-4)


@pytest.mark.parametrize("name", ["images", "both", "price"])
def test_onnx_computes_what_torch_computes_for_any_number_of_samples(
    homes: Path, tmp_path: Path, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "m.onnx"
    assert main(["export", str(homes / name), "--onnx", str(file)]) == 0
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    shapes: dict[str, Any] = {"images": [(3, 8, 8)], "both": [(3,), (5,)], "price": [(3,)]}
    inputs = [torch.rand(7, *shape) for shape in shapes[name]]
    given = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    expected = load(homes / name)(*inputs).detach().numpy()
    assert session.run(None, given)[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["predict", "nowhere", "x.npy"], "there is no directory nowhere"),
        (["predict", "HOME", "nothing.npy"], "there is no nothing.npy: give a .npy"),
        (["predict", "HOME", "bad.csv"], "bad.csv, sample 2: 'x' is not a number"),
        (["predict", "HOME", "flat.npy"], "the model takes (samples, 3)"),
        (["predict", "HOME", "wide.npy"], "the model does not accept these inputs"),
        (["predict", "HOME", "flat.npy", "--out", "x.txt"], "give a .csv or .npy file"),
        (["predict", "HOME", "flat.npy", "--set", "colour=1"], "has no option 'colour'"),
        (["export", "HOME"], "choose what to write"),
        (["export", "HOME", "--peft", "adapter"], "not a PEFT model"),
    ],
)
def test_a_mistake_is_one_line(
    homes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("a,b,c\n1,2,3\n1,x,3\n")
    np.save("flat.npy", np.zeros(9))
    np.save("wide.npy", np.zeros((2, 9)))
    assert main([str(homes / "price") if word == "HOME" else word for word in words]) == 2
    line = capsys.readouterr().err
    assert text in line
    assert line.count("\n") == 1


def test_a_module_without_a_forward_for_onnx_is_one_line(tmp_path: Path) -> None:
    from pfl_node.errors import TaskError
    from pfl_node.learning.inference import export_onnx

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 3 else -x

    pytest.importorskip("onnxscript")
    with pytest.raises(TaskError, match="cannot be exported"):
        export_onnx(Odd(), torch.zeros(2, 3), tmp_path / "m.onnx")
