from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lab.made_results import result


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result whose runs are all done; not to be written to."""
    return result(tmp_path_factory.mktemp("whole"))
