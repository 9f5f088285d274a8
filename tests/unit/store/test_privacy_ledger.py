"""What a node has told of its data, over restarts, crashes and full disks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from pfl_node.errors import Refused, StoreError
from pfl_node.protocol.privacy.controls import privacy_of, simulated
from pfl_node.protocol.privacy.dp_account import DpAccount, DpStep
from pfl_node.settings import Settings
from pfl_node.store.data_dir import DataDir
from pfl_node.store.privacy_ledger import PrivacyLedger
from pfl_node.types import PeerId
from tests.arm_failpoints import failing
from tests.toy import constant

YOU = PeerId("you")
LOSSES = np.array([0.5, 1.0])


def settings(**privacy: Any) -> Settings:
    return Settings.model_validate({"privacy": {"oracle": True, "oracle_budget": 0.2, "dp": True, **privacy}})


@pytest.fixture
def home(tmp_path: Path) -> Iterator[DataDir]:
    opened = DataDir.open(tmp_path / "node")
    yield opened
    opened.close()


def test_answers_and_trainings_are_there_after_a_restart(home: DataDir) -> None:
    first = privacy_of(settings(), PrivacyLedger(home.path), certain=True)
    assert first.oracle
    told = first.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES)
    first.account.spend(DpStep(1.0, 0.1), 7)
    first.account.spend(DpStep(1.0, 0.1), 3)
    second = privacy_of(settings(), PrivacyLedger(home.path), certain=True)
    assert second.oracle
    assert second.oracle.known(YOU, constant(1.0)) == told
    assert second.oracle.spent == {YOU: 0.1}
    assert second.account.steps == {DpStep(1.0, 0.1): 10}
    second.oracle.answer(YOU, constant(2.0), LOSSES, LOSSES)
    with pytest.raises(Refused, match=r"epsilon 0.2 of 0.2"):
        second.oracle.admit(YOU)


def test_noise_is_secret_and_differs_from_node_to_node_and_from_start_to_start(home: DataDir) -> None:
    mild = settings(oracle_epsilon=20.0, oracle_budget=100.0)  # noise that is not clipped to the same answer
    nodes = [privacy_of(mild, PrivacyLedger(home.path), certain=True) for _ in range(2)]
    assert nodes[0].account.secret != nodes[1].account.secret
    models = [constant(float(number)) for number in range(4)]
    answers = [[n.oracle.answer(YOU, m, LOSSES, LOSSES).loss for m in models] for n in nodes if n.oracle]
    assert answers[0] != answers[1]


def test_noise_of_a_simulation_follows_from_its_seed() -> None:
    nodes = [simulated(settings(), PeerId("n1"), DpAccount()) for _ in range(2)]
    answers = {node.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES).loss for node in nodes if node.oracle}
    assert len(answers) == 1


def test_half_a_line_at_the_end_was_never_told_and_the_next_line_is_whole(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path)
    ledger("trained", {"noise": 1.0, "rate": 0.1, "steps": 5})
    with ledger.path.open("ab") as file:
        file.write(b'{"time":1,"event":"trai')
    assert [row["steps"] for row in ledger.rows()] == [5]
    ledger("trained", {"noise": 1.0, "rate": 0.1, "steps": 6})
    assert [row["steps"] for row in ledger.rows()] == [5, 6]


@pytest.mark.parametrize("line", [b"garbage", b"[]", b'{"event":"trained"}', b'{"event":"told","peer":"x"}'])
def test_a_damaged_line_stops_the_start_with_one_clear_line(home: DataDir, line: bytes) -> None:
    ledger = PrivacyLedger(home.path)
    ledger("trained", {"noise": 1.0, "rate": 0.1, "steps": 5})
    with ledger.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StoreError, match=r"privacy.jsonl is damaged in line 2.*move it away"):
        privacy_of(settings(), PrivacyLedger(home.path), certain=True)


def test_a_file_that_was_taken_away_is_told_and_one_without_an_answer_is_not(home: DataDir) -> None:
    def warnings() -> list[str]:
        with capture_logs() as logs:
            privacy_of(settings(), PrivacyLedger(home.path), certain=True)
        return [entry["event"] for entry in logs]

    assert warnings() == []  # a new node
    home.journal.write_text('{"time":1,"event":"round","round":3}\n')
    assert warnings() == []  # nobody has asked it anything
    PrivacyLedger(home.path).path.unlink()
    assert warnings() == [
        "privacy.jsonl is missing although the journal has rounds: earlier disclosures are not counted"
    ]
    assert warnings() == []


def test_a_full_disk_costs_the_answer_and_not_the_budget(home: DataDir) -> None:
    privacy = privacy_of(settings(), PrivacyLedger(home.path), certain=True)
    assert privacy.oracle
    with failing("journal.write=1*error(ENOSPC)"), pytest.raises(Refused, match="cannot be recorded"):
        privacy.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES)
    assert privacy.oracle.spent == {}
    privacy.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES)
    assert privacy.oracle.spent == {YOU: 0.1}


def test_a_directory_that_cannot_be_synced_is_a_full_disk_too(
    home: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("pfl_node.store.privacy_ledger.sync_directory", fails)
    with pytest.raises(StoreError, match="Input/output error"):
        PrivacyLedger(home.path)("told", {})


def test_without_the_controls_nothing_is_written_and_nothing_is_told_of_them(home: DataDir) -> None:
    privacy = privacy_of(Settings(), PrivacyLedger(home.path), certain=False)
    assert privacy.oracle is None
    assert privacy.status() == {}
    assert not (home.path / "privacy.jsonl").exists()


def test_status_says_what_was_spent(home: DataDir) -> None:
    privacy = privacy_of(settings(), PrivacyLedger(home.path), certain=True)
    assert privacy.oracle
    privacy.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES)
    privacy.account.spend(DpStep(1.0, 0.1), 7)
    found = privacy.status()
    assert found["oracle"] == {"answers": 1, "budget": 0.2, "spent": {YOU: 0.1}, "total": 0.1}
    assert found["dp"] == {"epsilon": 0.0, "delta": 1e-5, "steps": 7, "exhausted": False}


def test_a_segment_goes_on_with_what_was_spent_once() -> None:
    account = DpAccount()
    first = simulated(settings(), PeerId("n1"), account)
    assert first.oracle
    first.oracle.answer(YOU, constant(1.0), LOSSES, LOSSES)
    account.spend(DpStep(2.0, 0.5), 4)
    held = first.dump()
    for learner in (account, DpAccount()):  # that of the segment before, and that of a new process
        again = simulated(settings(), PeerId("n1"), learner, held)
        assert again.oracle
        assert again.oracle.spent == {YOU: 0.1}
        assert again.account.steps == {DpStep(2.0, 0.5): 4}
