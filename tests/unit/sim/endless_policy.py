"""A policy that never returns."""

from __future__ import annotations

from pfl_node.policies.base import Policy
from pfl_node.steps import Sleep


class Endless(Policy):
    async def main(self) -> None:
        while True:
            await Sleep(60.0)
