"""`pfl_node.load`: the personal model of a data directory, rebuilt by its task or loaded into a module."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node import plugin
from pfl_node.daemon import process
from pfl_node.errors import ConfigError, LayoutMismatch, StoreError
from pfl_node.learning.personal_model import load, load_personal
from pfl_node.settings import Settings
from pfl_node.store.model_file import read_model

CLINIC = """
import numpy as np
from torch import nn

CALLS = []

def clinic(index=None, node_id="", hidden=4, token=""):
    CALLS.append((index, node_id, hidden, token))
    y = np.arange(30) % 3
    x = np.random.default_rng(1).normal(y[:, None], 1.0, (30, 5)).astype("float32")
    def model():
        return nn.Sequential(nn.Linear(5, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3)).double()
    return {"model": model, "train": (x, y)}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that has done two rounds."""
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "clinic.py").write_text(CLINIC)
    settings = {
        "policy": {"name": "local"},
        "task": {"name": f"{folder / 'clinic.py'}:clinic", "hidden": 6, "token": "hush", "index": "slot"},
        "data_dir": folder / "node-3",
        "rounds": 2,
        "log": {"level": "error"},
    }
    assert asyncio.run(process._run(Settings.model_validate(settings))) == 0
    return folder / "node-3"


def same(module: nn.Module, directory: Path, file: str = "model.safetensors") -> bool:
    state = module.state_dict()
    return all(np.array_equal(state[k].numpy(), v) for k, v in read_model(directory / file)[1].items())


def test_the_best_model_is_loaded_by_name(trained: Path) -> None:
    found = load_personal(trained, best=True)
    assert same(found.module, trained, "best.safetensors")
    assert found.facts["metric"] == "accuracy"
    assert same(load(trained, best=True, into=found.module), trained, "best.safetensors")


def test_the_task_is_called_with_the_settings_and_the_place_of_the_node(trained: Path) -> None:
    found = load_personal(trained)
    assert same(found.module, trained)
    assert not found.module.training
    assert found.module(torch.zeros(2, 5)).shape == (
        2,
        3,
    )  # in float32, as it was trained
    assert found.task.train.x.shape[1:] == (5,)
    assert (found.facts["policy"], found.facts["round"]) == ("local", "2")
    identity = json.loads((trained / "identity.json").read_text())["id"]
    calls = plugin.load("task", f"{trained.parent / 'clinic.py'}:CALLS", ConfigError)
    assert calls[-1] == (2, identity, 6, "")


def test_settings_without_secrets_are_in_the_directory(trained: Path) -> None:
    text = (trained / "settings.toml").read_text()
    assert "hidden = 6" in text
    assert "hush" not in text


def test_options_may_be_given_anew(trained: Path) -> None:
    load(trained, token="again")
    with pytest.raises(LayoutMismatch, match=r"builds another model .* has its code or an option changed"):
        load(trained, hidden=7)
    with pytest.raises(ConfigError, match="has no option 'hiden'"):
        load(trained, hiden=7)


def test_a_function_may_be_given_instead_of_the_saved_task(trained: Path) -> None:
    def ours(hidden: int = 6) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(5, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3))
        return {"model": model, "train": (np.zeros((4, 5), np.float32), np.arange(4) % 3)}

    assert same(load(trained, task=ours), trained)


def test_with_a_module_the_task_is_not_called(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    assert load(tmp_path, into=module) is module
    assert same(module, trained)
    with pytest.raises(StoreError, match=r"no .*settings.toml.*give `into`"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="either"):
        load(tmp_path, into=module, hidden=3)


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)), "the module has no tensor '2."),
        (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)), r"has the shape \(6,"),
        (nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Linear(3, 3)), "the file has no"),
    ],
)
def test_a_module_that_does_not_fit_is_one_line(trained: Path, module: nn.Module, complaint: str) -> None:
    with pytest.raises(LayoutMismatch, match=complaint):
        load(trained, into=module)


def test_a_directory_without_a_model_says_when_there_will_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a node writes it with its first checkpoint"):
        load(tmp_path)
