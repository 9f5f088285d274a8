"""The small internet that each scenario gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.networks.internet import Internet
from tests.networks.programs import Swarm


@pytest.fixture
def internet() -> Iterator[Internet]:
    if os.getpid() != 1:
        pytest.skip("runs in namespaces of its own: make test-netns")
    with Internet() as made:
        yield made


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path) as made:
        yield made
