"""A run outside lockstep that is interrupted takes the results of its jobs from its log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pfl_node.errors import PflError
from pfl_node.policies import POLICIES
from pfl_node.settings import Settings
from pfl_node.sim import job_log
from pfl_node.sim.job_log import FILES
from pfl_node.sim.job_pool import Inline
from pfl_node.sim.learner_port import LearnerPort, Load
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.sim.snapshot import may_be_held
from pfl_node.testing.contract.small_config import small
from pfl_node.types import PeerId
from tests.toy import ToyLearner
from tests.unit.sim.toy_swarms import toy

NODES, ROUNDS, CUT = 5, 6, 20
OUTSIDE_LOCKSTEP = [name for name, cls in POLICIES.items() if not may_be_held(cls)]


class Cut(Exception):
    """A simulated power failure."""


class CountedLearner(ToyLearner):
    jobs: ClassVar[Counter[str]] = Counter()

    def train(self, *args: Any, **options: Any) -> Any:
        self.jobs["train"] += 1
        return super().train(*args, **options)

    def score(self, *args: Any, **options: Any) -> Any:
        self.jobs["score"] += 1
        return super().score(*args, **options)


def counted(index: int, node: PeerId) -> LearnerPort:
    return CountedLearner(float(index % 2), cluster=index % 2)


def run(
    out: Path, policy: str = "gossip", *, cut_after: int | None = None, code: str = "", load: Load = counted
) -> tuple[bytes, dict[str, Any]]:
    """Journal and summary. `cut_after` counts rounds of all nodes."""
    told = {"policy": {"name": policy, **small(POLICIES[policy], real_time=True)}, "rounds": ROUNDS}

    def progress(now: Progress) -> None:
        if cut_after is not None and now.rounds_done > cut_after:
            raise Cut

    CountedLearner.jobs.clear()
    given = Settings.model_validate(told)
    found: Summary = simulate(given, nodes=NODES, segment=3, out=out, progress=progress, load=load, code=code)
    summary = json.loads((out / "summary.json").read_text())
    assert found.cpu_seconds == summary["cpu_seconds"]
    return (out / "journal.jsonl").read_bytes(), {k: v for k, v in summary.items() if not k.endswith("_seconds")}


def interrupt(out: Path, policy: str = "gossip", *, cut_after: int = CUT, code: str = "") -> Counter[str]:
    """The jobs that ran before the interruption."""
    with pytest.raises(Cut):
        run(out, policy, cut_after=cut_after, code=code)
    return CountedLearner.jobs.copy()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[bytes, dict[str, Any]], Counter[str]]:
    found = run(tmp_path_factory.mktemp("whole"))
    return found, CountedLearner.jobs.copy()


Whole = tuple[tuple[bytes, dict[str, Any]], Counter[str]]


@pytest.mark.parametrize("policy", OUTSIDE_LOCKSTEP)
def test_no_job_of_an_interrupted_run_is_repeated(tmp_path: Path, policy: str) -> None:
    known = run(tmp_path / "whole", policy)
    jobs = CountedLearner.jobs.copy()
    before = interrupt(tmp_path / "broken", policy)
    assert run(tmp_path / "broken", policy) == known
    assert before + CountedLearner.jobs == jobs
    assert before["train"] > 0


def test_a_run_may_be_interrupted_several_times(tmp_path: Path, whole: Whole) -> None:
    ran = interrupt(tmp_path, cut_after=8) + interrupt(tmp_path, cut_after=15) + interrupt(tmp_path, cut_after=22)
    assert len(list((tmp_path / "segments").glob(FILES))) == 3
    assert run(tmp_path) == whole[0]
    assert ran + CountedLearner.jobs == whole[1]


def test_the_log_is_deleted_with_the_run(tmp_path: Path) -> None:
    interrupt(tmp_path)
    run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]


def test_the_seconds_of_the_jobs_are_those_of_their_process(tmp_path: Path) -> None:
    interrupt(tmp_path)
    log = next((tmp_path / "segments").glob(FILES))
    lines = log.read_bytes().split(b"\n", 1)
    log.write_bytes(lines[0] + b"\n" + lines[1].replace(b'"took": [', b'"took": [1000'))  # e.g. 0.2 -> 10000.2
    run(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["wall_seconds"] > 1000


@pytest.mark.parametrize("damage", ["cut", "bit", "json", "header", "empty"])
def test_results_that_are_damaged_are_computed_again(tmp_path: Path, whole: Whole, damage: str) -> None:
    before = interrupt(tmp_path)
    log = next((tmp_path / "segments").glob(FILES))
    content = bytearray(log.read_bytes())
    if damage == "cut":
        del content[len(content) * 2 // 3 :]
    elif damage == "bit":  # in the numbers of the last model
        content[-1] ^= 1
    elif damage == "json":
        at = content.index(b'"number"', len(content) // 2)
        content[at : at + 8] = b"{{{{{{{{"
    elif damage == "header":
        content[5] ^= 1
    else:
        content.clear()
    log.write_bytes(content)
    assert run(tmp_path) == whole[0]
    assert (before + CountedLearner.jobs).total() > whole[1].total()


def test_the_log_of_other_code_is_not_used(tmp_path: Path, whole: Whole) -> None:
    interrupt(tmp_path, code="one")
    assert run(tmp_path, code="other") == whole[0]
    assert CountedLearner.jobs == whole[1]


def test_a_job_with_other_models_runs_again(tmp_path: Path) -> None:
    """As after an edit of the policy in a checkout whose changes are not committed."""
    interrupt(tmp_path / "both")

    class Other(CountedLearner):
        def fresh(self, *args: Any, **options: Any) -> Any:
            found = super().fresh(*args, **options)
            return type(found)(found.layout, found.vector + 1)

    def load(index: int, node: PeerId) -> LearnerPort:
        return Other(float(index % 2))

    assert run(tmp_path / "both", load=load) == run(tmp_path / "other", load=load)


@pytest.mark.parametrize("limit", ["LIMIT", "RESERVE"])
def test_a_run_whose_log_is_full_goes_on_without(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(job_log, limit, 0 if limit == "LIMIT" else 1 << 62)
    monkeypatch.setattr(job_log, "CHECK", -1.0)
    interrupt(tmp_path)
    assert run(tmp_path) == whole[0]
    assert CountedLearner.jobs["train"] > whole[1]["train"] - 2


def test_a_disk_without_space_does_not_end_the_run(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job_log, "write_frame", full)
    assert run(tmp_path) == whole[0]


def test_a_process_that_lost_its_run_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "CHECK", -1.0)

    def load(index: int, node: PeerId) -> LearnerPort:
        (tmp_path / "segments" / "attempt").write_text("the successor")
        return counted(index, node)

    with pytest.raises(PflError, match="another process has taken over"):
        run(tmp_path, load=load)


def test_a_run_that_was_deleted_meanwhile_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "CHECK", -1.0)

    def load(index: int, node: PeerId) -> LearnerPort:
        shutil.rmtree(tmp_path / "segments", ignore_errors=True)
        return counted(index, node)

    with pytest.raises(PflError, match="was stopped"):
        run(tmp_path, load=load)


def test_a_simulation_without_segments_writes_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inline: list[str] = []
    submit = Inline.submit

    def counting(self: Inline, *args: Any) -> Any:
        inline.append("job")
        return submit(self, *args)

    monkeypatch.setattr(Inline, "submit", counting)
    settings = Settings.model_validate({"policy": {"name": "local"}, "rounds": 1})
    simulate(settings, nodes=1, out=tmp_path, load=toy)
    assert inline
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]
