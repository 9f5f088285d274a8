"""Whether a daemon without peers trains."""

from __future__ import annotations

import pytest

from pfl_node.daemon.assemble import not_alone
from pfl_node.settings import Settings


@pytest.mark.parametrize(
    ("seeds", "given", "does"),
    [
        ((), None, "train"),
        (("192.0.2.1:7946",), None, "wait"),
        (("192.0.2.1:7946",), "train", "train"),
        ((), "wait", "wait"),
    ],
)
def test_a_daemon_that_is_configured_with_peers_waits_for_them(
    seeds: tuple[str, ...], given: str | None, does: str
) -> None:
    settings = Settings.model_validate({"peer_seed": seeds, "round": {"alone": given}})
    assert not_alone(settings).round.alone == does


def test_a_daemon_that_may_stop_early_does_not_wait_for_others_that_did() -> None:
    settings = Settings.model_validate({"peer_seed": ("192.0.2.1:7946",), "train": {"patience": 3}})
    assert not_alone(settings).round.alone == "train"
