"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("pfl", deadline=None, database=None, derandomize=True)  # the same everywhere, no files
settings.load_profile("pfl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="write the digests of tests/golden anew")
