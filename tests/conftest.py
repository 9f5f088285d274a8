"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pfl", deadline=None, database=None, derandomize=True)  # the same everywhere, no files
settings.load_profile("pfl")
