from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_node import plugin
from pfl_node.errors import ConfigError
from pfl_node.policies import POLICIES, configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.policies.facade import Facade
from pfl_node.policies.gossip import Gossip
from pfl_node.policies.greedy import Greedy
from pfl_node.policies.local import Local
from pfl_node.policies.pens import Pens
from pfl_node.policies.pens_pull import PensPull

MINE = """
from pydantic import Field
from pfl_node.policies.base import Policy, PolicyConfig

class Mine(Policy):
    class Config(PolicyConfig):
        depth: int = 3
    async def main(self) -> None:
        pass

class Half(Policy):
    pass

class Sync(Policy):
    def main(self) -> None:
        pass

def helper() -> None:
    pass
"""


class Bare(Policy):
    async def main(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_module_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("pfl_plugin_"):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def complaint(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_policy(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_name_of_the_table() -> None:
    assert load_policy("pens") is Pens
    assert list(POLICIES)[:3] == ["local", "gossip", "pens"]


def test_a_class_of_a_file(file: Path) -> None:
    cls = load_policy(f"{file}:Mine")
    assert cls.__name__ == "Mine"
    assert configure(cls, {"depth": "4"}).model_dump() == {"depth": 4}
    assert load_policy(f"{file}:Mine") is cls


def test_a_class_of_a_module() -> None:
    assert load_policy("pfl_node.policies.facade:Facade") is Facade


def test_a_name_that_does_not_exist_gets_the_nearest_one() -> None:
    assert complaint("gosip") == "unknown policy 'gosip': did you mean 'gossip'?"
    assert complaint("xyz") == "unknown policy 'xyz': known: " + ", ".join(sorted(POLICIES))


def test_a_file_without_a_class(file: Path) -> None:
    assert complaint(str(file)) == f"policy {file}: its class is missing; write {file}:CLASS"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    place = f"{tmp_path}/none.py:Mine"
    assert complaint(place).startswith(f"policy {place}: there is no file {tmp_path}/none.py (looked in ")


def test_a_class_that_is_not_in_the_file(file: Path) -> None:
    assert complaint(f"{file}:Mime").endswith("mine.py:Mime: there is no 'Mime'; did you mean 'Mine'?")


def test_something_that_is_no_policy(file: Path) -> None:
    assert "not a subclass of pfl_node.policies.base.Policy" in complaint(f"{file}:helper")
    assert complaint(f"{file}:Half").endswith("has no main()")
    assert complaint(f"{file}:Sync").endswith("its main() is not a coroutine; write async def main(self)")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('keeps = "c"', "keeps = 'c' is a text; write keeps = ('c',)"),
        ('takes = serves = ("core")', "takes = 'core' is a text; write takes = ('core',)"),
        ('vectors = ("c",)', "vectors = ('c',) is not a dict of names and parts (model, core, head), such as "),
        (
            'vectors = {"c": "body"}',
            "vectors = {'c': 'body'} is not a dict of names and parts (model, core, head)",
        ),
    ],
)
def test_a_class_that_declares_nonsense_about_itself(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "odd.py").write_text(f"from pfl_node.policies.el import El\n\nclass Odd(El):\n    {line}\n")
    assert f"odd.py:Odd: {text}" in complaint(f"{tmp_path}/odd.py:Odd")


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    path = tmp_path / "shattered.py"
    path.write_text("def broken(:\n")
    assert re.search(r"cannot be imported: SyntaxError: .*\(shattered.py, line 1\)$", complaint(f"{path}:X"))
    path.write_text("\n\nimport nothing_of_this_name\n")
    assert complaint(f"{path}:X").endswith(
        "shattered.py:X: cannot be imported (shattered.py, line 3): "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    assert not any(name.startswith("pfl_plugin_shattered") for name in sys.modules)


def test_a_script_that_ends_the_program_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import sys\nsys.exit(4)\n")
    assert complaint(f"{path}:X").endswith("cannot be imported (script.py, line 2): SystemExit: 4")


def test_a_module_that_cannot_be_imported() -> None:
    assert complaint("no.such.module:X") == (
        "policy no.such.module:X: cannot be imported: ModuleNotFoundError: No module named 'no'"
    )
    assert "cannot be imported" in complaint(":X")


def test_a_place_without_anything(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("")
    with pytest.raises(ConfigError, match="there is no 'X'; nothing is defined there"):
        plugin.load("task", f"{path}:X", ConfigError)


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (Pens, {"n_sample": 3}, "policy.n_sample is not a knob of Pens: did you mean 'n_sampled'?"),
        (Pens, {"m": 0}, "policy.m = 0: input should be greater than or equal to 1 (step 1: how many"),
        (Pens, {"m": "two"}, "policy.m = 'two': input should be a valid integer"),
        (Pens, {"m": True}, "policy.m = True: must be a number (step 1: how many"),
        (Pens, {"m": 20}, "policy (Pens): m = 20 is more than n_sampled = 10"),
        (Gossip, {"delta": 0}, "policy.delta = 0: input should be greater than 0 (mean seconds between two sends"),
        (Gossip, {"delta": float("inf")}, "policy.delta = inf: input should be a finite number"),
        (Gossip, {"jitter": 2}, "policy.jitter = 2: input should be less than or equal to 1"),
        (Local, {"m": 1}, "policy.m is not a knob of Local: known: patience, window"),
        (Bare, {"m": 1}, "policy.m is not a knob of Bare: it has no knobs"),
        (Greedy, {"m_selected": 21}, "policy (Greedy): m_selected = 21 is more than m_sample = 20"),
        (PensPull, {"m_sample": 3}, "policy (PensPull): m_selected = 4 is more than m_sample = 3"),
        (Greedy, {"scored": "ours"}, "policy.scored = 'ours': input should be 'mine' or 'theirs'"),
        (Facade, {"k": 0, "kk": 1}, "policy.k = 0: input should be greater than or equal to 1"),
        (Facade, {"k": 0, "kk": 1}, "; policy.kk is not a knob of Facade: "),
    ],
)
def test_a_wrong_knob_is_one_line_that_says_what_is_allowed(cls: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure(cls, options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_knobs_from_a_command_line_are_texts_and_are_understood() -> None:
    cfg = configure(Facade, {"k": "3", "all_reduce": "false"})
    knobs = {"k": 3, "degree": 4, "graph": "shared", "warmup": 10, "samples": 80, "own_samples": False}
    knobs |= {"all_reduce": False}
    assert cfg.model_dump() == knobs


def test_a_file_finds_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_mine.py").write_text(MINE)
    (tmp_path / "front.py").write_text("from beside_mine import Mine\n")
    assert load_policy(f"{tmp_path}/front.py:Mine").__name__ == "Mine"
    del sys.modules["beside_mine"]
