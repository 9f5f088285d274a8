"""Measures of targets and of gaps between clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.measures import MEASURES, CellResult
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result import reopen
from pfl_node.lab.results import Results
from tests.unit.lab.made_results import result, written

SERIES = {
    4: {
        "a": {"test_accuracy": 0.5, "bytes_sent": 1_000_000},
        "b": {"test_accuracy": 0.7, "bytes_sent": 3_000_000},
    },
    9: {
        "a": {"test_accuracy": 0.8, "bytes_sent": 2_000_000},
        "b": {"test_accuracy": 0.9, "bytes_sent": 6_000_000},
    },
}


def cell(target: float | None = None, **accuracies: float) -> CellResult:
    nodes = [{"id": id, "cluster": i} for i, id in enumerate("ab")]
    return CellResult({"per_node": nodes, "accuracy_by_cluster": accuracies}, SERIES, target)


def test_rounds_to_any_percentage_are_measures_of_their_own() -> None:
    assert "rounds_to.82" in MEASURES
    assert MEASURES["rounds_to.60"].of(cell()) == 5
    assert MEASURES["rounds_to.82.5"].of(cell()) == 10
    assert MEASURES["rounds_to.99"].of(cell()) is None
    assert MEASURES["rounds_to.99"].why_not(cell()) == "not reached"
    assert phrases.heading("rounds_to.82") == "rounds to 82 %"
    assert "rounds_to.x" not in MEASURES
    assert "rounds_to.100" not in MEASURES


def test_megabytes_to_the_target_are_those_of_all_nodes_at_that_time() -> None:
    assert MEASURES["megabytes_to_target"].of(cell(0.6)) == 4
    assert MEASURES["megabytes_to_target"].of(cell(0.85)) == 8
    assert MEASURES["megabytes_to_target"].of(cell(0.9)) is None
    assert MEASURES["megabytes_to_target"].of(cell()) is None


def test_the_gap_is_between_the_largest_and_the_smallest_cluster() -> None:
    found = cell(**{"0": 0.7, "1": 0.4})
    assert MEASURES["gap"].of(found) == pytest.approx(0.3)
    alone = replace(found, summary={**found.summary, "per_node": found.summary["per_node"][:1]})
    assert MEASURES["gap"].of(alone) is None


def test_the_speed_up_is_the_rounds_of_the_baseline_divided_by_ones_own(tmp_path: Path) -> None:
    record = reopen(result(tmp_path, plots="[]"))
    experiment = replace(record.experiment, baselines={"FACADE": "EL"})
    target = {c: replace(f, target=0.45) for c, f in record.results.found.items()}
    found = Results(experiment, target)
    own, base = (found.by_seed(run, "", "rounds_to_target") for run in ("FACADE", "EL"))
    assert found.by_seed("FACADE", "", "speed_up") == {seed: base[seed] / own[seed] for seed in (0, 1)}
    assert found.by_seed("EL", "", "speed_up") == {}


def test_a_baseline_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace('label = "EL"', 'label = "EL"\nbaseline = "Locla"'))
    with pytest.raises(ConfigError, match="there is no run 'Locla'; did you mean 'Local'"):
        spec.load(str(path))
