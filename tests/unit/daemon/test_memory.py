"""Limits that follow from the memory of the process."""

from __future__ import annotations

from pfl_node.daemon.assemble import fit_to_memory
from pfl_node.settings import Settings


def test_waiting_models_use_a_quarter_of_the_memory_at_most() -> None:
    small = fit_to_memory(Settings(), 768 << 20).serve
    assert (small.waiting, small.waiting_per_peer) == (192 << 20, 48 << 20)


def test_on_a_large_machine_the_settings_count() -> None:
    assert fit_to_memory(Settings(), 1 << 40).serve == Settings().serve
