"""How many files handle one model: the trace of benchmarks/model_path.py finds it, and the way is short."""

from __future__ import annotations

from benchmarks.model_path import followed

MOST, MOST_OF_SEND = 25, 6


def test_a_model_passes_few_files_from_its_training_to_an_average_elsewhere() -> None:
    found = followed()
    path = [name for name in found.path if name]
    assert path[0] == "node/learn.py"
    assert "node/gather.py" in path
    assert len(path) <= MOST
    assert 0 < len(found.send) <= MOST_OF_SEND
