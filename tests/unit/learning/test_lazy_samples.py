from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from pfl_node import plugin
from pfl_node.errors import TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.samples import StackedSamples
from pfl_node.model import Model
from pfl_node.settings import DataSettings, TrainSettings
from tests.unit.learning.lazy_data import Failing, Fatal, Images, net, task

MADE: list[Learner] = []


@pytest.fixture(autouse=True)
def workers_end() -> Iterator[None]:
    """Also those of a learner that the traceback of an expected error keeps alive."""
    yield
    while MADE:
        MADE.pop().close()


def learner(data: Any, *, more: dict[str, Any] | None = None, **settings: Any) -> Learner:
    made = Learner(task(data, **more or {}), TrainSettings(epochs=2), "cpu", data=DataSettings(**settings))
    MADE.append(made)
    return made


def trained(me: Learner, rounds: int = 2) -> Model:
    model = me.fresh(0)
    for round in range(rounds):
        model = me.train(model, seed=round)
    return model


def test_random_transforms_are_drawn_anew_in_every_epoch_and_round() -> None:
    data = Images(24)
    me = learner(data)
    data.seen.clear()
    trained(me, rounds=3)
    assert len(data.seen) == 24 * 2 * 3
    assert len(set(data.seen)) == len(data.seen)  # no sample was seen twice in the same form


def test_in_an_evaluation_a_sample_has_the_same_form_in_any_order() -> None:
    me = learner(Images(30))
    batches = [me._splits["train"].batches([torch.tensor(order)]) for order in ([3, 5, 8], [8, 3, 5])]
    first, second = (next(batch).x for batch in batches)
    assert torch.equal(first[[2, 0, 1]], second)


def test_results_are_the_same_bytes_without_and_with_workers() -> None:
    models, scores = [], []
    for workers in (0, 2):
        me = learner(Images(40), workers=workers)
        models.append(trained(me))
        scores.append(me.score(models[-1:], split="train", samples=11) + me.score(models[-1:], split="val"))
    assert models[0] == models[1]
    assert scores[0] == scores[1]


def test_lazy_and_in_memory_are_the_same_bytes_if_nothing_is_random() -> None:
    models = {memory: trained(learner(Images(40, augment=False), memory=memory)) for memory in ("never", "always")}
    assert models["never"] == models["always"]


def test_reading_a_sample_leaves_the_generators_of_the_training_alone() -> None:
    """Dropout draws from the generator that is seeded for transforms."""
    me = learner(Images(40))
    alone = trained(me)
    model = me.fresh(0)
    for round in range(2):
        model = me.train(model, seed=round, between=lambda: void(me.score([alone], samples=3)))
    assert model == alone


def void(_: object) -> None:
    pass


def test_a_score_may_interrupt_a_training_that_workers_read_for() -> None:
    me = learner(Images(40), workers=1)
    alone = trained(me)
    model = me.fresh(0)
    for round in range(2):
        model = me.train(model, seed=round, between=lambda: void(me.score([alone], samples=3)))
    assert model == alone


def test_a_training_that_stops_early_does_not_disturb_the_next() -> None:
    me, calls = learner(Images(40), workers=2), []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        me.train(me.fresh(0), seed=5, between=stop)
    assert trained(me) == trained(learner(Images(40)))


def workers_of(me: Learner) -> list[psutil.Process]:
    del me
    return [p for p in psutil.Process().children(recursive=True) if p.ppid() != os.getpid()]


def test_workers_live_from_round_to_round_and_end_with_the_learner() -> None:
    me = learner(Images(40), workers=2)
    model = me.train(me.fresh(0), seed=0)
    first = workers_of(me)
    me.train(model, seed=1)
    me.score([model], split="train")
    assert len(first) == 2
    assert workers_of(me) == first
    me.close()
    assert psutil.wait_procs(first, timeout=20)[1] == []


def test_a_worker_that_dies_costs_no_sample() -> None:
    expected = trained(learner(Images(40)))
    assert trained(learner(Fatal(40), workers=1)) == expected


def test_workers_find_the_file_of_a_task_and_no_other(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("from tests.unit.learning.lazy_data import Images, net\n\nclass Mine(Images): ...\n")
    (gone := tmp_path / "gone.py").write_text("def task(): ...\n")
    plugin.load("task", f"{gone}:task", TaskError)
    gone.unlink()
    mine = plugin.load("task", f"{own}:Mine", TaskError)
    me = learner(mine(40), workers=1)
    assert trained(me) == trained(learner(Images(40)))
    assert len(workers_of(me)) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_named_with_the_original_error(workers: int) -> None:
    me = learner(Failing(40), workers=workers)
    with pytest.raises(TaskError) as error:
        trained(me)
    assert "the train data: sample 13 cannot be read (lazy_data.py, line" in str(error.value)
    assert str(error.value).endswith("OSError: broken file")


def test_data_that_cannot_be_sent_to_workers_says_so_before_training() -> None:
    class Local(Images):
        pass

    with pytest.raises(TaskError) as error:
        learner(Local(40), workers=1)
    assert "the train data cannot be read by data.workers = 1: AttributeError: Can't pickle" in str(error.value)
    assert str(error.value).endswith("at the top level of a file, or set data.workers = 0")


def test_a_small_split_without_randomness_is_kept_in_memory_and_others_are_not() -> None:
    me = learner(Images(40), more={"test": Images(20, augment=False)})
    kinds = {name: isinstance(samples, StackedSamples) for name, samples in me._splits.items()}
    assert kinds == {"train": False, "val": True, "test": True}


@pytest.mark.slow
def test_workers_end_when_the_node_is_killed() -> None:
    script = (
        "from tests.unit.learning.test_lazy_samples import *\n"
        "if __name__ == '__main__':\n"
        "    me = learner(Images(40), workers=2)\n"
        "    me.train(me.fresh(0), seed=0)\n"
        "    print([p.pid for p in workers_of(me)], flush=True)\n"
        "    time.sleep(60)\n"
    )
    node = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    with node.stdout as output:
        pids = [int(pid) for pid in output.readline().strip("[]\n").split(",")]
    workers = [psutil.Process(pid) for pid in pids]
    node.send_signal(signal.SIGKILL)
    node.wait()
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=20)[1] == []


__all__ = ["Images", "learner", "net", "time", "workers_of"]


def test_workers_do_not_run_a_script_whose_classes_they_do_not_need(tmp_path: Path) -> None:
    """Without `if __name__ == "__main__"`, they would start the script's training again."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('run')\n"
        "from pfl_node.learning.learner import Learner\n"
        "from pfl_node.settings import DataSettings, TrainSettings\n"
        "from tests.unit.learning.lazy_data import Images, task\n"
        "me = Learner(task(Images(24)), TrainSettings(), 'cpu', data=DataSettings(workers=1))\n"
        "me.train(me.fresh(0), seed=1)\n"
        "me.close()\n"
    )
    env = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run\n", "")


class Here(Images):
    """As if its class were in the script that is run."""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "run()",
            "is of a class of script.py, which data.workers import: put what starts the run under `if __name__",
        ),
        (None, "is of a class of the notebook: put it into a file for data.workers"),
    ],
)
def test_a_script_that_workers_would_run_again_is_refused(
    source: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    if source is not None:
        (tmp_path / "script.py").write_text(source)
        main.__file__ = str(tmp_path / "script.py")
    main.__dict__["Here"] = Here
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(Here, "__module__", "__main__")
    with pytest.raises(TaskError) as raised:
        learner(Here(24), workers=1)
    assert says in str(raised.value)
    assert sys.modules["__main__"] is main
