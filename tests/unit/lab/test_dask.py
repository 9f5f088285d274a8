"""An experiment on a Dask cluster: the same files as on this machine, also if a worker dies."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pfl_node.errors import ConfigError, Unavailable
from pfl_node.lab import cell_job, executors, runner, spec
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.sim.run_jobs import Message
from pfl_node.sim.segments import ATTEMPT
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.simulation import Simulation
from tests.unit.lab.made_results import written

LONG = 120.0  # seconds, on a busy machine
ROOT = Path(__file__).resolve().parents[3]


def experiment(folder: Path, rounds: int = 10) -> Experiment:
    return spec.load(str(written(folder, nodes=4, rounds=rounds, seeds=1)), sets=["task.samples=20"])


def journals(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("**/journal.jsonl"))}


def run(
    what: Experiment, out: Path, cluster: str | None, on_cell: Callable[[Cell, Message], None] = lambda *_: None
) -> dict[str, bytes]:
    failures = runner.run(what, ResultsDir(out), workers=None if cluster else 1, on_cell=on_cell, cluster=cluster)
    assert failures == []
    assert not (out / runner.PROGRESS).exists()
    return journals(out)


@pytest.fixture
def threads() -> Iterator[str]:
    """A scheduler and two workers in this process."""
    from distributed import LocalCluster

    quiet: Any = {"silence_logs": logging.CRITICAL, "dashboard_address": None, "worker_dashboard_address": None}
    with LocalCluster(n_workers=2, threads_per_worker=2, processes=False, protocol="tcp", **quiet) as cluster:
        yield cluster.scheduler_address.replace("tcp", "dask")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_runs_on_a_cluster_are_those_of_this_machine(
    threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = experiment(tmp_path)
    heard: list[str] = []
    remote = run(what, tmp_path / "remote", threads, lambda cell, message: heard.append(message["event"]))
    monkeypatch.setattr(runner, "executor", lambda *_: ThreadPoolExecutor(1))  # sooner than processes
    assert remote == run(what, tmp_path / "here", None)
    assert len(remote) == len(what.cells) == 3
    assert heard.count("done") == 3
    made = json.loads((tmp_path / "remote" / "el" / "seed-0" / "made_with.json").read_text())
    assert len(made["environments"]) == 1


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8786", "dask://", "dask://host", "dask://host:x", "ray://host:1", "dask://h:1/x"]
)
def test_an_address_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(ConfigError, match=r"it should be dask://HOST:PORT"):
        executors.check(url)


def test_an_address_is_translated_to_that_of_dask() -> None:
    assert executors.address_of("dask://host:8786") == "tcp://host:8786"
    assert executors.address_of("dask+tls://[::1]:8786") == "tls://[::1]:8786"


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pfl-node\[cluster\]'"):
        executors.check("dask://host:8786")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT", 0.2)
    with (
        pytest.raises(Unavailable, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        executors.executor("dask://127.0.0.1:9", None),
    ):
        pass


def order(tmp_path: Path, code: str = "") -> str:
    cell = experiment(tmp_path).cells[0]
    run = RunOrder(cell.settings, cell.nodes, out=tmp_path / "cell", segment=5)
    return cell_job.CellOrder(run, code or cell_job.code()).dump()


def test_a_worker_with_another_version_refuses_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has pfl-node .*, but the lab has 0.0.1 abc: install the same or, if"):
        cell_job.run(order(tmp_path, "0.0.1 abc"), lambda _: None)


def test_a_worker_that_does_not_see_the_results_refuses_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"all workers must share the results directory \(--out\)"):
        cell_job.run(order(tmp_path), lambda _: None)


def test_a_worker_frees_the_data_of_a_run_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "settings.json").write_text("{}")
    kept: list[weakref.ref[Simulation]] = []
    start = Simulation.run

    def run(simulation: Simulation) -> None:
        kept.append(weakref.ref(simulation))
        start(simulation)

    monkeypatch.setattr(Simulation, "run", run)
    gc.disable()  # so that only the worker itself can collect the cycles
    try:
        cell_job.run(order(tmp_path), lambda _: None)
        assert kept
        assert [ref() for ref in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_a_run_ends_when_the_lab_has_stopped_it(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "settings.json").write_text("{}")
    told = order(tmp_path)

    def stop(_: object) -> None:
        runner.stop(cell_job.CellOrder.load(told).run)

    with pytest.raises(Exception, match="was stopped"):
        cell_job.run(told, stop)
    assert not (tmp_path / "cell" / "segments" / ATTEMPT).exists()


# -- processes -------------------------------------------------------------------------------------------------


@contextmanager
def dask(what: str, *words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", *words, "--no-dashboard"],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LONG
    while not (value := found()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return value


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process, as on several machines with a shared directory."""
    file = folder / "scheduler.json"
    words = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    with dask("scheduler", *words, log=folder / "scheduler.log"):
        address = until(lambda: file.exists() and json.loads(file.read_text())["address"], "no scheduler")
        one = (address, "--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        with dask("worker", *one, log=folder / "w1.log") as a, dask("worker", *one, log=folder / "w2.log") as b:
            yield address.replace("tcp", "dask"), [a, b]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_the_run_of_a_worker_that_is_killed_resumes_on_the_other_with_the_same_result(tmp_path: Path) -> None:
    what = experiment(tmp_path, rounds=60)
    killed: list[str] = []
    with cluster(tmp_path) as (address, workers):

        def kill(cell: Cell, message: Message) -> None:
            """The worker of the first run that has saved a segment."""
            if killed or not list((tmp_path / "remote" / cell.folder).glob("segments/??????/swarm.json")):
                return
            begun = {w.pid: w for w in workers if _writes(w.pid, tmp_path / "remote" / cell.folder)}
            for worker in list(begun.values())[:1]:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                killed.append(cell.folder)

        remote = run(what, tmp_path / "remote", address, kill)
    assert killed, "every run ended before its worker could be killed"
    assert remote == run(what, tmp_path / "here", None)


def _writes(pid: int, folder: Path) -> bool:
    """Does the process have a file of the run open?"""
    try:
        files = psutil.Process(pid).open_files()
    except psutil.NoSuchProcess:
        return False
    return any(file.path.startswith(str(folder)) for file in files)
