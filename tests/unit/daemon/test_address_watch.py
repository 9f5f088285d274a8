"""A node whose machine gets another address says so."""

from __future__ import annotations

import asyncio

import pytest

from pfl_node.daemon import address_watch
from pfl_node.daemon.address_watch import AddressWatch
from pfl_node.errors import ConfigError
from tests.unit.membership.local_swarm import until


def test_each_new_address_is_told_once_and_a_line_that_is_down_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_watch, "EVERY", 0.001)

    async def scenario() -> list[str]:
        found = iter(["10.0.0.1:1", None, "10.0.0.2:1", "10.0.0.2:1", None, "10.0.0.1:1"])
        moves: list[str] = []

        async def find() -> str:
            address = next(found, "10.0.0.1:1")
            if address is None:
                raise ConfigError("there is no route")
            return address

        watch = AddressWatch(find, moves.append)
        watch.start("10.0.0.1:1")
        await until(lambda: len(moves) == 2)
        await watch.close()
        return moves

    assert asyncio.run(scenario()) == ["10.0.0.2:1", "10.0.0.1:1"]
