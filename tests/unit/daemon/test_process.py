"""The daemon: the line it prints is the line that joins, and a signal ends it in order."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pfl_node.cli import main
from pfl_node.daemon import process
from pfl_node.daemon.process import as_set, join_line
from pfl_node.policies import configure, load_policy
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from tests.arm_failpoints import failing

HERE = "127.0.0.1:7000"


def test_with_the_defaults_the_line_is_short() -> None:
    assert join_line(Settings(), HERE) == f"pfl-node --peer-seed {HERE}"


def test_what_belongs_to_this_node_alone_is_not_in_the_line() -> None:
    mine = {
        "name": "ann",
        "listen": "127.0.0.1:7000",
        "data_dir": "d",
        "device": "cpu",
        "peer_seed": ["a:1"],
        "task": {"index": 2, "nodes": 4},
        "log": {"level": "debug"},
    }
    assert join_line(Settings.model_validate(mine), HERE) == f"pfl-node --peer-seed {HERE}"


def test_no_secret_is_in_the_line() -> None:
    task = {"name": "a.py:f", "db_password": "hunter2"}
    line = join_line(Settings.model_validate({"task": task}), HERE)
    assert line.endswith("--set 'task.db_password=***'")


def test_what_the_run_has_in_common_is_in_the_line() -> None:
    settings = Settings.model_validate(
        {
            "run": "my run",
            "rounds": 5,
            "insecure": True,
            "policy": {"name": "facade", "k": 3, "all_reduce": False},
            "task": {"sizes": [14, 6], "model": "cnn"},
            "train": {"init": "common", "lr": 0.01},
        }
    )
    assert join_line(settings, HERE) == (
        f"pfl-node --peer-seed {HERE} --run 'my run' --policy facade --rounds 5 "
        "--set policy.k=3 --set policy.all_reduce=false --set 'task.sizes=[14, 6]' --set task.model=cnn "
        "--set train.lr=0.01 --set train.init=common --insecure"
    )


COMMON: list[dict[str, Any]] = [
    {"policy": {"name": "facade", "k": 3, "all_reduce": False}, "rounds": 4, "seed": 9},
    {"policy": {"name": "pens", "T": 20, "score_samples": 7, "delta": 1e-3}},
    {"task": {"sizes": [14, 6], "angles": [0, 90], "samples": 30, "model": "cnn"}},
    {"task": {"name": "my tasks/it's.py:make", "word": "1", "yes": "true", "date": "2026-01-02", "none": ""}},
    {"task": {"name": "a.py:f", "list": ["a b", "c,d"], "deep": {"x": [1.5, True]}, "path": "C:\\data 'x'"}},
    {"train": {"optimizer": "adam", "lr": 1e-05, "epochs": 0.5, "init": "common"}},
    {"membership": {"transport": "grpc", "probe_interval": 2.0}},
    {"run": "the $HOME of `it`", "insecure": True},
]


@pytest.mark.parametrize("common", COMMON, ids=json.dumps)
def test_a_shell_and_the_command_read_the_line_as_it_was_meant(
    common: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("a.py", "my tasks/it's.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("def f(**options): ...\n\n\nmake = f\n")
    for variable in [v for v in os.environ if v.startswith("PFL_")]:
        monkeypatch.delenv(variable)
    settings = Settings.model_validate(common)
    program, *words = shlex.split(join_line(settings, HERE))
    assert program == "pfl-node"
    assert main(["config", *words, "--format", "json"]) == 0
    got = json.loads(capsys.readouterr().out)
    knobs = configure(load_policy(settings.policy.name), settings.policy.options).model_dump(mode="json")
    wanted = settings.model_dump(mode="json") | {
        "peer_seed": [HERE],
        "policy": {"name": settings.policy.name, **knobs},
    }
    assert got == wanted


values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_any_value_of_an_option_comes_back_the_same(value: Any) -> None:
    settings = load_settings(sets=["task=a.py:f", f"task.x={as_set(value)}"])
    again = settings.task.options["x"]
    assert again == value
    assert type(again) is type(value)


@pytest.fixture
def signals() -> Iterator[None]:
    """As they were."""
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("number", "format"), [(signal.SIGTERM, "console"), (signal.SIGINT, "auto")])
def test_a_signal_ends_it_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, format: str
) -> None:
    settings = Settings.model_validate(
        {"policy": {"name": "local"}, "task": {"samples": 20}, "data_dir": tmp_path, "log": {"format": format}}
    )
    journal = tmp_path / "journal.jsonl"

    async def go() -> int:
        run = asyncio.create_task(process._run(settings))
        async with asyncio.timeout(60):
            while not (journal.exists() and '"event":"round"' in journal.read_text()):
                await asyncio.wait((run,), timeout=0.01)
                assert not run.done()
            os.kill(os.getpid(), number)
            return await run

    assert asyncio.run(go()) == 0
    if format == "console":
        listens, joins = capsys.readouterr().out.splitlines()[:2]
        assert listens.endswith(f"data in {tmp_path}")
        assert " listens on 127.0.0.1:" in listens
        assert joins.startswith("another node joins with: pfl-node --peer-seed 127.0.0.1:")
    else:
        told = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (told["event"], told["data_dir"], told["page"]) == ("listening", str(tmp_path), None)
        assert told["join"] == f"pfl-node --peer-seed {told['address']} --policy local --set task.samples=20"
    assert json.loads(journal.read_text().splitlines()[-1])["how"] == "stopped"
    assert (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint-000001.safetensors").exists()
    assert signal.getsignal(number) is signal.SIG_DFL  # a second one ends it at once


@pytest.mark.usefixtures("signals")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_full_disk_behind_stdout_costs_its_lines_and_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate(
        {"policy": {"name": "local"}, "task": {"samples": 20}, "data_dir": tmp_path, "rounds": 1}
    )
    full = Path("/dev/full").open("w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    with capture_logs() as logs:
        assert asyncio.run(process._run(settings)) == 0
    with pytest.raises(OSError, match="No space left"):
        full.close()
    [lost] = [entry for entry in logs if entry["event"] == "cannot write to stdout"]
    assert "listening" in lost["line"]
    assert lost["error"] == "No space left on device"
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.usefixtures("signals")
def test_rounds_that_are_done_and_cannot_be_written_are_a_failure_that_says_so(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"policy": {"name": "local"}, "task": {"samples": 20}, "data_dir": tmp_path, "rounds": 1}
    )
    with failing("checkpoint.write=error(ENOSPC);model.write=error(ENOSPC)"), capture_logs() as logs:
        assert asyncio.run(process._run(settings)) == 1
    files = "the last checkpoint, model.safetensors, best.safetensors"
    assert logs[-1]["event"].startswith(f"finished, but {files} could not be written in {tmp_path}: free")
    assert logs[-1]["log_level"] == "error"
    with capture_logs() as logs:
        assert asyncio.run(process._run(settings)) == 0  # the disk has room again: it does the round anew
    assert [e["model"] for e in logs if e["event"] == "finished"] == [str(tmp_path / "model.safetensors")]
    assert any(
        e["event"].startswith("no checkpoint: starting over, although the journal has round 0") for e in logs
    )
