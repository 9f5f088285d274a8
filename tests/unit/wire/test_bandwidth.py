"""How long a call may take."""

from __future__ import annotations

import numpy as np
import pytest

from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire.auto_encoding import AutoEncoding
from pfl_node.wire.bandwidth import ENOUGH, PEERS, Bandwidth, Bandwidths
from pfl_node.wire.payload import Payload


def payload(nbytes: int) -> Payload:
    layout = Layout((Entry("core", (nbytes // 4,)),), ())
    return Payload(Model(layout, np.zeros(layout.size, np.float32)))


def test_before_the_first_transfer_the_guess_counts() -> None:
    assert Bandwidth(1e6).timeout(10, 50_000_000) == 10 + 2 * 50


def test_a_measured_link_sets_the_deadline_and_later_transfers_move_it() -> None:
    link = Bandwidth(1e6)
    link.moved(10_000_000, 1.0)
    assert link.rate == 1e7
    link.moved(20_000_000, 1.0)
    assert link.rate == pytest.approx(1.3e7)
    assert link.timeout(10, 13_000_000) == pytest.approx(12)


def test_a_small_message_says_nothing_about_the_bandwidth() -> None:
    link = Bandwidth(1e6)
    link.moved(ENOUGH - 1, 5.0)
    assert link.rate == 1e6


def test_a_missed_deadline_gives_the_next_call_more_time_up_to_a_limit() -> None:
    link = Bandwidth(1e6)
    link.too_slow()
    assert link.timeout(0, 1_000_000) == 4
    for _ in range(20):
        link.too_slow()
    assert link.timeout(0, 1_000_000) == 32


def test_a_transfer_that_broke_off_shows_how_slow_a_line_is() -> None:
    link = Bandwidth(1e6, lowest=4e3)
    assert link.known is None
    link.broke(5_000_000, 40.0)
    assert link.known == 125e3


def test_a_transfer_that_broke_off_never_makes_a_line_look_faster() -> None:
    """What was written last may not have left the machine."""
    link = Bandwidth(1e6)
    link.moved(1_000_000, 1.0)
    link.broke(50_000_000, 2.0)
    assert link.rate == 1e6
    link.broke(1_000_000, 0.1)  # too short to say anything
    link.broke(1000, 100.0)
    assert link.rate == 1e6


def test_a_line_is_slow_until_it_is_twice_as_fast_as_needed() -> None:
    link = Bandwidth(1e6)
    assert not link.slow(100_000_000, 5.0)  # nothing is known
    link.moved(1_000_000, 1.0)
    assert link.slow(10_000_000, 5.0)
    assert link.slow(4_000_000, 5.0)
    assert not link.slow(2_400_000, 5.0)
    assert not link.slow(4_000_000, 5.0)


def test_the_lines_to_very_many_peers_are_not_all_remembered() -> None:
    lines = Bandwidths(1e6, 4e3)
    lines.of(PeerId("a")).moved(1_000_000, 10.0)
    for number in range(PEERS - 1):
        lines.of(PeerId(f"p{number}"))
    assert lines.of(PeerId("a")).known == 1e5
    assert lines.measured() == {"a": 100_000}
    for number in range(PEERS):
        lines.of(PeerId(f"q{number}"))
    assert lines.of(PeerId("a")).known is None


def test_models_are_compact_where_a_transfer_takes_longer_than_training() -> None:
    auto, line = AutoEncoding(WireSettings()), Bandwidth(1e6)
    auto.training = lambda: 60.0
    assert auto.of(line, payload(10_000_000).size).encoding == "fp32"
    line.moved(10_000_000, 80.0)
    slow = auto.of(line, payload(10_000_000).size)
    assert (slow.encoding, slow.zstd) == ("int8", 1)
    auto.training = lambda: 200.0  # twice what fp32 would take
    assert auto.of(line, payload(10_000_000).size).encoding == "fp32"


def test_however_short_the_training_a_short_transfer_keeps_its_precision() -> None:
    auto, line = AutoEncoding(WireSettings()), Bandwidth(1e6)
    line.moved(1_000_000, 1.0)
    assert auto.of(line, payload(1_900_000).size).encoding == "fp32"
    assert auto.of(line, payload(2_100_000).size).encoding == "int8"


def test_of_a_partial_model_only_the_bytes_that_are_sent_count() -> None:
    """In memory, each of its numbers has an index of four bytes."""
    auto, line = AutoEncoding(WireSettings()), Bandwidth(1e6)
    line.moved(1_000_000, 1.0)
    whole = payload(2_100_000).model
    assert auto.of(line, Payload(whole.fragment(*range(9), of=10)).size).encoding == "fp32"
    assert auto.of(line, Payload(whole.sparse(range(0, whole.layout.size, 2))).size).encoding == "fp32"
    assert auto.of(line, Payload(whole).size).encoding == "int8"


def test_an_encoding_that_was_chosen_stays() -> None:
    auto, line = AutoEncoding(WireSettings(encoding="fp16")), Bandwidth(1e6)
    line.moved(1_000_000, 100.0)
    assert auto.of(line, payload(100_000_000).size).encoding == "fp16"
