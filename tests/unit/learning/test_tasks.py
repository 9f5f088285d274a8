from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Place, Task
from pfl_node.learning.tasks import TASKS, check_name, load_task
from pfl_node.settings import TaskSettings, TrainSettings

HERE = Place(index=1, nodes=4, seed=3, node_id="abc")
START = """
    import torch
    from torch import nn
    from pfl_node.learning.task import Data, Task

    def rows(n=12):
        return torch.randn(n, 4), torch.arange(n) % 3

    def net():
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
"""


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("pfl_plugin_", "beside", "mypackage")):
            del sys.modules[name]


def write(folder: Path, body: str, name: str = "mine.py", start: str = START) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(start) + "\n" + textwrap.dedent(body))
    return path


def load(name: str, place: Place = HERE, **options: Any) -> Task:
    return load_task(TaskSettings(name=name, **options), place)


def test_the_embedded_task_is_found_by_its_name() -> None:
    task = load("digits", samples=20)
    assert (task.name, task.cluster, len(task.train.x)) == ("digits", 0, 20)
    assert all("\n" not in t.description for t in TASKS.values())


@pytest.mark.parametrize(
    "body",
    [
        "def task(): return Task('t', net, Data(*rows()))",
        "def task(): return {'model': net, 'train': rows()}",
        "def task(): return dict(model=net(), train=rows(), val=rows(), test=rows(), head='0')",
        "class task:\n    model = staticmethod(net)\n    train = rows()",
        "def task():\n    from types import SimpleNamespace\n    return SimpleNamespace(model=net, train=rows())",
        "def task(): return {'model': net, 'train': torch.utils.data.TensorDataset(*rows())}",
        "def task(): return {'model': net, 'train': [a.numpy() for a in rows()]}",
        "def task(): return Task('t', net(), Data(*rows()))",
    ],
)
def test_a_users_function_may_give_a_task_a_dict_or_any_object(tmp_path: Path, body: str) -> None:
    task = load(f"{write(tmp_path, body)}:task")
    me = Learner(task, TrainSettings(), "cpu")
    trained = me.train(me.fresh(0), seed=0)
    assert trained.is_finite()
    assert task.val is not None
    assert task.test is not None


def test_the_function_gets_what_it_declares_and_the_options(tmp_path: Path) -> None:
    body = """
        def task(node_id, index, size, *, seed, scale=1.0):
            x, y = rows(size)
            return {"model": net, "train": (x * 0 + scale, y), "cluster": index + seed, "head": "*"}
    """
    task = load(f"{write(tmp_path, body)}:task", size=6, scale=2.5)
    assert (len(task.train.x), task.train.x[0, 0], task.cluster, task.head) == (6, 2.5, 4, "*")


def test_a_function_with_open_arguments_gets_all_options(tmp_path: Path) -> None:
    body = "def task(nodes, **options): return {'model': net, 'train': rows(options['size']), 'cluster': nodes}"
    task = load(f"{write(tmp_path, body)}:task", size=7)
    assert (len(task.train.x), task.cluster) == (7, 4)


def test_a_module_of_a_package_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    write(tmp_path / "mypackage", "def task(): return {'model': net, 'train': rows()}", "work.py")
    monkeypatch.chdir(tmp_path)
    assert load("mypackage.work:task").name == "mypackage.work:task"


def test_a_file_may_import_the_files_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "", "beside.py")
    path = write(
        tmp_path, "from beside import net, rows\ndef task(): return dict(model=net, train=rows())", start=""
    )
    assert load(f"{path}:task").train is not None


def test_a_file_is_run_once_however_many_nodes_use_it(tmp_path: Path) -> None:
    path = write(tmp_path, "def task(): return {'model': net, 'train': rows(), 'cluster': id(net) % 1000}")
    assert load(f"{path}:task").cluster == load(f"{path}:task").cluster


def test_a_model_that_is_handed_over_ready_is_the_same_for_every_node_of_a_seed(tmp_path: Path) -> None:
    path = write(tmp_path, "def task(): return {'model': net(), 'train': rows()}")
    first, second = (Learner(load(f"{path}:task"), TrainSettings(), "cpu") for _ in range(2))
    assert first.fresh(0) == second.fresh(0) == second.fresh(1)
    other = Learner(load(f"{path}:task", Place(0, 4, 99, "abc")), TrainSettings(), "cpu")
    assert other.fresh(0) != first.fresh(0)


def test_nodes_share_their_modules_even_when_each_gets_a_factory_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, "def task(): return {'model': lambda: net(), 'train': rows()}")
    nodes = [Learner(load(f"{path}:task"), TrainSettings(), "cpu") for _ in range(5)]
    assert len({id(n._pool) for n in nodes}) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digts", "unknown task 'digts'; did you mean 'digits'?"),
        ("cifar", "unknown task 'cifar'; did you mean 'cifar10'?"),
        (
            "words",
            "unknown task 'words'; known: cifar10, digits, emnist, fashion_mnist, imagenette, images, mnist",
        ),
        ("mine.py", "mine.py:FUNCTION"),
    ],
)
def test_an_unknown_name_names_the_nearest(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(name)
    assert text in str(error.value)


def test_a_place_outside_the_swarm_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="the last one is nodes - 1"):
        load("digits", Place(4, 4, 0, ""))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"smaples": 3}, "task digits has no option 'smaples'; did you mean 'samples'?"),
        (
            {"colour": 3},
            "task digits has no option 'colour'; known: alpha, angles, auxiliary, model, samples, sizes, test_mix",
        ),
    ],
)
def test_an_unknown_option_names_the_nearest(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("digits", **options)
    assert str(error.value) == text


MISTAKES = [
    (
        "def task(size): return {'model': net, 'train': rows(size)}",
        "task",
        "needs its option 'size': --set task.size=",
    ),
    ("def task(): return {'model': net, 'train': rows()}", "taks", "there is no 'taks'; did you mean 'task'?"),
    ("task = 3", "task", "mine.py:task: expected a function, found int"),
    ("import no_such_thing", "task", "line 12): ModuleNotFoundError: No module named 'no_such_thing'"),
    ("def task(:", "task", "SyntaxError: invalid syntax (mine.py, line 12)"),
    ("def task():\n    return 1 / 0", "task", "(mine.py, line 13): ZeroDivisionError: division by zero"),
    ("def task():\n    return torch.ones(2) @ torch.ones(3)", "task", "(mine.py, line 13): RuntimeError"),
    (
        "import sys\nsys.exit('usage: mine.py FOLDER')",
        "task",
        "(mine.py, line 13): SystemExit: usage: mine.py FOLDER",
    ),
    ("def task():\n    raise SystemExit(3)", "task", "task failed (mine.py, line 13): SystemExit: 3"),
    ("def task(): return None", "task", "returned nothing"),
    ("def task(): return {'model': net}", "task", "returned no 'train'"),
    ("def task(): return {'model': net, 'trian': rows()}", "task", "unknown 'trian'; did you mean 'train'?"),
    ("def task(): return {'model': 3, 'train': rows()}", "task", "the model is of type int, not an nn.Module"),
    ("def task(): return {'model': net, 'train': rows(0)}", "task", "the train data is empty"),
    (
        "def task(): return {'model': net, 'train': (rows(3)[0], rows(4)[1])}",
        "task",
        "3 samples in x but 4 labels",
    ),
    ("def task(): return {'model': net, 'train': rows(), 'val': (torch.ones(2), ['a'])}", "task", "the val data"),
    (
        "def task(): return {'model': net, 'train': rows(), 'auxiliary': torch.ones(5, 9)}",
        "task",
        "the auxiliary data has samples (9,) torch.float32, the train data has",
    ),
    (
        "def task(): return {'model': net, 'train': rows(), 'autoencoder': 'small'}",
        "task",
        "the autoencoder is of type str, not an nn.Module",
    ),
]


@pytest.mark.parametrize(("body", "function", "text"), MISTAKES)
def test_a_mistake_in_a_users_task_is_one_line_that_says_where(
    tmp_path: Path, body: str, function: str, text: str
) -> None:
    with pytest.raises((TaskError, ConfigError)) as error:
        load(f"{write(tmp_path, body)}:{function}")
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_cannot_be_made_is_one_line_that_says_where(tmp_path: Path) -> None:
    body = "def task(): return {'model': lambda: nn.Linear('wide', 3), 'train': rows()}"
    task = load(f"{write(tmp_path, body)}:task")
    with pytest.raises(TaskError, match=r"task: the model cannot be built \(mine.py, line 12\): TypeError: "):
        Learner(task, TrainSettings(), "cpu")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="there is no file"):
        load(f"{tmp_path}/nothing.py:task")
    with pytest.raises(TaskError, match=r"ends in \.py: .*/mine\.py:task$"):
        load(f"{tmp_path}/mine:task")


def test_a_module_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TaskError, match="no_such_module:task: cannot be imported: ModuleNotFoundError"):
        load("no_such_module:task")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing.py:task", "there is no file"),
        ("mine.py:task", "task .*/mine.py:task: cannot be imported: SyntaxError: .*line 12\\)$"),
    ],
)
def test_a_file_that_cannot_be_imported_is_known_before_it_is_run(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, "def task(:", start=START + "    raise AssertionError('it was run')")
    with pytest.raises(TaskError, match=text):
        check_name(f"{tmp_path}/{name}")


def test_nothing_is_run_and_nothing_warned_of_before_its_time(tmp_path: Path) -> None:
    check_name(f"{write(tmp_path, 'raise AssertionError; 1 is 1')}:task")
    check_name("a.module:task")
    check_name("digits")


def test_a_file_that_failed_can_be_mended_and_loaded_again(tmp_path: Path) -> None:
    path = write(tmp_path, "import no_such_thing")
    with pytest.raises(TaskError):
        load(f"{path}:task")
    write(tmp_path, "def task(): return {'model': net, 'train': rows()}")
    assert load(f"{path}:task").name.endswith("mine.py:task")


def test_tasks_are_listed_and_the_trainer_is_made_without_torch() -> None:
    code = """
        import sys
        import pfl_node.learning
        from pfl_node.learning.task import Data, Place, Task
        from pfl_node.learning.tasks import TASKS, arguments, find
        from pfl_node.learning.trainer import TrainerThread
        from pfl_node.settings import TaskSettings
        TrainerThread()
        arguments(find("digits"), TaskSettings(samples=3), Place(0, 1, 0, ""))
        assert "torch" not in sys.modules and "sklearn" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_a_node_that_trains_imports_neither_torchs_compiler_nor_scikit_learn() -> None:
    code = """
        import sys
        from pfl_node.learning.learner import Learner
        from pfl_node.learning.task import Place
        from pfl_node.learning.tasks import load_task
        from pfl_node.settings import TaskSettings, TrainSettings
        task = load_task(TaskSettings(auxiliary=0.1), Place(0, 20, 0, ""))
        me = Learner(task, TrainSettings(optimizer="adam", lr=0.01))
        me.score([me.train(me.fresh(0), seed=0)])
        said = me.predict(me.fresh(0), seed=0, novelty=1, counts=True)
        me.distill(me.fresh(0), seed=0, teacher=said, epochs=1)
        assert not {"torch._dynamo", "torchvision", "sklearn", "scipy"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
