"""kill -9 at every write, fsync and rename of the store: what is found then is whole, and the node goes on."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pfl_node.failpoints import PLACES
from pfl_node.store.checkpoints import Checkpoints
from tests.e2e.processes import DEADLINE, command, fast, processes, until
from tests.e2e.writer import OpenStore

STORE = sorted(name for name, place in PLACES.items() if "error" in place.takes)
ONCE = {
    "checkpoint.read",
    "checkpoint.aside",
    "journal.mend",
}  # passed at a start, and only when there is a reason
LOOP = [name for name in STORE if name not in ONCE]


@dataclass(frozen=True, slots=True)
class Life:
    """What a writer said until it was killed."""

    code: int
    told: str

    @property
    def begun(self) -> tuple[int, int, str] | None:
        """Round, incarnation and id that it found; None: it did not come so far."""
        found = re.search(r"^from (-?\d+) (\d+) (\w+)$", self.told, re.MULTILINE)
        return (int(found[1]), int(found[2]), found[3]) if found else None

    @property
    def finished(self) -> int | None:
        """The last round that it wrote whole."""
        rounds = [int(line.split()[1]) for line in self.told.splitlines() if line.startswith("done ")]
        return max(rounds, default=None)


class Writers:
    """Starts writers, each a process of its own, one after the other."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lives = 0
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        line = [sys.executable, "-m", "tests.e2e.writer"]
        self._parent = subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def live(
        self, folder: Path, points: str = "", times: int = 20, meddle: Callable[[int, Path], None] | None = None
    ) -> Life:
        """One life; it is killed where the points say so, or by whoever is told its process and its output."""
        assert self._parent.stdin
        assert self._parent.stdout
        self._lives += 1
        out = self._out / str(self._lives)
        out.touch()
        order = {"folder": str(folder), "points": points, "times": times, "out": str(out)}
        print(json.dumps(order), file=self._parent.stdin, flush=True)
        process = int(self._parent.stdout.readline())
        if meddle:
            meddle(process, out)
        code = int(self._parent.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return Life(code, out.read_text())

    def close(self) -> None:
        self._parent.communicate(timeout=DEADLINE)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    made = Writers(tmp_path_factory.mktemp("told"))
    yield made
    made.close()


class Record:
    """What must be found after the lives that were."""

    def __init__(self) -> None:
        self.finished = -1
        self.id: str | None = None
        self.incarnation = 0
        self.kills = 0

    def add(self, life: Life) -> None:
        self.kills += life.code == -signal.SIGKILL
        if life.begun:
            self.check(*life.begun)
        self.finished = self.finished if life.finished is None else life.finished

    def check(self, round: int, incarnation: int, id: str) -> None:
        assert round in (self.finished, self.finished + 1), f"{round} is not one of the last two"
        assert incarnation > self.incarnation
        assert self.id in (None, id)
        self.finished, self.incarnation, self.id = round, incarnation, id

    def go_on(self, folder: Path) -> None:
        """A restart inside the test: it finds what it must, and the next checkpoint leaves the directory tidy."""
        context = OpenStore(folder)
        self.check(context.round, context.home.identity.incarnation, context.home.identity.id)
        context.write(context.round + 1)
        context.write(context.round + 2)
        assert len(context.generations.files()) == 2
        assert not list(folder.glob(".checkpoint*"))
        context.close()
        again = OpenStore(folder)
        assert again.round == self.finished + 2
        again.close()


@pytest.mark.parametrize("point", LOOP)
def test_killed_there_a_writer_goes_on_from_one_of_the_last_two(
    tmp_path: Path, writers: Writers, point: str
) -> None:
    record = Record()
    for points in (f"{point}=panic", f"{point}=4*off->panic"):
        life = writers.live(tmp_path, points)
        assert life.code == -signal.SIGKILL
        record.add(life)
    record.go_on(tmp_path)


def spoil_checkpoint(folder: Path) -> None:
    newest, *_ = Checkpoints(folder / "checkpoint.safetensors").files().values()
    newest.write_bytes(newest.read_bytes()[:-1])


def tear_journal(folder: Path) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"time":0,"ev')


def nothing(folder: Path) -> None: ...


SPOILT: dict[str, tuple[Callable[[Path], None], int]] = {  # and how many rounds that costs
    "checkpoint.read": (nothing, 0),
    "checkpoint.aside": (spoil_checkpoint, 1),
    "journal.mend": (tear_journal, 0),
}


@pytest.mark.parametrize("point", SPOILT)
def test_killed_while_it_mends_what_it_finds_it_can_be_started_again(
    tmp_path: Path, writers: Writers, point: str
) -> None:
    spoil, cost = SPOILT[point]
    record = Record()
    record.add(writers.live(tmp_path, "", times=3))
    record.finished -= cost
    spoil(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # it may be ahead of a checkpoint that was damaged
    for _ in range(2):
        life = writers.live(tmp_path, f"{point}=panic")
        assert (life.code, life.told) == (-signal.SIGKILL, "")
    record.go_on(tmp_path)


def test_every_place_of_the_store_is_tried() -> None:
    assert {*LOOP, *SPOILT} == set(STORE)


@pytest.mark.slow
def test_a_hundred_kills_by_chance(tmp_path: Path, writers: Writers) -> None:
    """One directory and a hundred lives in a row: in each, every place kills with a chance of 1 %."""
    record, seed = Record(), 0
    while record.kills < 100:
        points = ";".join(f"{name}=1%panic" for name in STORE)
        record.add(writers.live(tmp_path, f"seed={seed};{points}", times=100))
        seed += 1
    record.go_on(tmp_path)


@pytest.mark.slow
def test_a_hundred_kills_from_outside(tmp_path: Path, writers: Writers) -> None:
    """The same, but the kill comes at any moment, wherever the writer is just then."""
    record, rng = Record(), random.Random(0)

    def kill(process: int, out: Path) -> None:
        lines = rng.randrange(6)
        until(lambda: out.read_text().count("\n") >= lines)
        time.sleep(rng.random() * 0.02)
        os.kill(process, signal.SIGKILL)

    for _ in range(100):
        record.add(writers.live(tmp_path, times=1_000_000, meddle=kill))
    assert record.kills == 100
    record.go_on(tmp_path)


# -- a real node -------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a daemon to its end, in one directory for all."""
    words = ["--policy", "local", "--data-dir", "n", "--set", "store.checkpoint_every=2", *fast()]
    with processes(tmp_path, preloaded=True) as start:

        def run(points: str, rounds: int) -> tuple[int, str]:
            monkeypatch.setenv("PFL_FAILPOINTS", points)
            process = start("pfl_node", "--rounds", rounds, *words)
            return process.wait(), process.output

        yield run


def test_a_node_killed_while_it_writes_is_the_same_and_loses_no_more_than_was_not_due(
    tmp_path: Path, node: Callable[..., tuple[int, str]]
) -> None:
    steps = ["write", "rename", "prune"]
    for n, step in enumerate(steps):
        code, output = node(f"checkpoint.{step}={2 if step == 'prune' else 1}*off->panic", 1000)
        assert code == -signal.SIGKILL, output
        assert f"fail point checkpoint.{step}: panic" in output
        assert ("continuing from the checkpoint" in output) == (n > 0)
    code, output = node("", 30)
    assert code == 0, output
    rows = [json.loads(line) for line in (tmp_path / "n" / "journal.jsonl").read_text().splitlines()]
    starts = [i for i, row in enumerate(rows) if row["event"] == "started"]
    assert len(starts) == len(steps) + 1
    assert len({rows[i]["node"] for i in starts}) == 1
    for i in starts[1:]:
        assert rows[i - 1]["event"] == "round"
        assert 0 <= rows[i - 1]["round"] + 1 - rows[i]["round"] <= 2  # rounds that are done again
    assert rows[-1]["round"] == 30
    identity = json.loads((tmp_path / "n" / "identity.json").read_text())
    assert identity["incarnation"] == len(steps) + 1


def test_a_full_disk_is_reported_and_the_training_goes_on(
    tmp_path: Path, node: Callable[..., tuple[int, str]]
) -> None:
    code, output = node("checkpoint.write=2*error(ENOSPC);journal.write=1*error(ENOSPC)", 8)
    assert code == 0, output
    assert output.count("the checkpoint was not written; training goes on") == 2
    assert output.count("No space left on device") == 3
    found = Checkpoints(tmp_path / "n" / "checkpoint.safetensors").files()
    assert list(found) == [2, 1]


def test_a_node_whose_checkpoints_are_all_damaged_ends_with_a_line_that_says_what_to_do(
    tmp_path: Path, node: Callable[..., tuple[int, str]]
) -> None:
    assert node("", 4)[0] == 0
    files = list(Checkpoints(tmp_path / "n" / "checkpoint.safetensors").files().values())
    assert len(files) == 2
    files[0].write_bytes(b"")
    code, output = node("", 5)
    assert code == 0
    assert f"checkpoint {files[0].name} is unusable, continuing from an older one" in output
    for file in Checkpoints(tmp_path / "n" / "checkpoint.safetensors").files().values():
        file.write_bytes(b"")
    code, output = node("", 6)
    assert code == 1
    last = output.splitlines()[-1]
    assert "no checkpoint in n is usable: " in last
    assert "restore one from a backup, or move them away to start again at round 0" in last
    assert "Traceback" not in output


def test_a_mistyped_fail_point_ends_a_node_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_FAILPOINTS", "checkpoint.renamed=panic")
    done = command("--data-dir", "n", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'checkpoint.rename'? known: admit, checkpoint.aside" in done.stderr
    assert list(tmp_path.iterdir()) == []
