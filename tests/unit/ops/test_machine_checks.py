"""What `pfl-node doctor` says about certificate, key, disk, clock, version, pace, data and device."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pfl_node.ops import machine_checks
from pfl_node.ops.machine_checks import (
    BYTES_PER_DAY,
    DISK_FULL,
    DISK_LOW,
    certificate_check,
    clock_check,
    data_check,
    device_check,
    disk_check,
    key_check,
    traffic_check,
    version_check,
)
from tests.identities import Site


@pytest.mark.parametrize(("days", "level"), [(-1, "fail"), (3, "warn"), (300, "ok")])
def test_a_certificate_that_ends_soon_is_renewed_in_time(tmp_path: Path, days: int, level: str) -> None:
    certificate = Site(tmp_path).tls("ann").trust.credentials.certificate
    assert certificate_check(certificate, certificate.not_after - timedelta(days=days)).level == level


def test_without_tls_no_certificate_and_no_key_is_needed() -> None:
    assert certificate_check(None, datetime.now(UTC)).level == "ok"
    assert key_check(None).level == "ok"


def test_a_key_that_other_users_can_read_is_a_warning(tmp_path: Path) -> None:
    key = Site(tmp_path).member("ann").key
    assert key_check(key).level == "ok"
    key.chmod(0o644)
    check = key_check(key)
    assert (check.level, check.todo) == ("warn", f"chmod 600 {key}")


@pytest.mark.parametrize(("free", "level"), [(DISK_FULL - 1, "fail"), (DISK_LOW - 1, "warn"), (DISK_LOW, "ok")])
def test_a_disk_that_runs_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    class Usage:
        def __init__(self, _: Path) -> None:
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", Usage)
    assert disk_check(tmp_path / "not" / "there" / "yet").level == level


def test_what_could_not_be_written_is_named(tmp_path: Path) -> None:
    check = disk_check(tmp_path, ["the checkpoint"])
    assert (check.level, check.text) == ("fail", f"could not write the checkpoint in {tmp_path}")


def test_a_running_node_without_its_directory_fails(tmp_path: Path) -> None:
    check = disk_check(tmp_path / "gone", running=True)
    assert (check.level, check.text) == ("fail", f"{tmp_path}/gone does not exist any more")
    assert disk_check(tmp_path, running=True).level != "fail"


@pytest.mark.parametrize(
    ("ahead", "level", "text"),
    [
        ([], "warn", "not checked"),
        ([0.1, -0.2, 900.0], "ok", "0.1 s behind"),
        ([-120.0], "warn", "120.0 s ahead of the member that was asked"),
        ([7200.0, 7201.0], "fail", "7200.5 s behind"),
    ],
)
def test_the_clock_is_compared_with_the_median_of_others(ahead: list[float], level: str, text: str) -> None:
    check = clock_check(ahead)
    assert check.level == level
    assert text in check.text


def test_other_versions_are_named() -> None:
    assert version_check({}, "1").level == "ok"
    assert version_check({"north": "1"}, "1").level == "ok"
    check = version_check({"north": "1", "east": "2"}, "1")
    assert (check.level, check.text) == ("warn", "1, but east has 2")


def test_much_traffic_is_told_with_what_to_do() -> None:
    assert traffic_check(None, "a round every 3 s").text == "a round every 3 s"
    assert traffic_check(BYTES_PER_DAY, "x").level == "ok"
    assert traffic_check(5.54e6, "a round every 20 min").text == "a round every 20 min, 5.5 MB of models a day"
    check = traffic_check(90e9, "a round every 0.08 s")
    assert (check.level, check.text) == ("warn", "a round every 0.08 s, 90 GB of models a day")
    assert "round.every" in check.todo


def test_a_task_without_samples_fails() -> None:
    assert [data_check(samples).level for samples in (None, 0, 5)] == ["waiting", "fail", "ok"]


def test_a_gpu_that_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_check("auto", loaded=False).level == "waiting"
    monkeypatch.setattr(machine_checks, "_has_gpu", lambda: True)
    assert device_check("cpu").level == "warn"
    assert device_check("auto").text == "auto: a GPU"
