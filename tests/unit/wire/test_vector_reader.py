"""Decodes the numbers of a payload: chunks of any size."""

from __future__ import annotations

import numpy as np

from pfl_node.errors import Reason
from pfl_node.wire.encodings import PLAIN
from pfl_node.wire.vector_reader import VectorReader
from tests.unit.wire.test_codec import layout_of


def test_a_vector_of_one_number_may_come_in_two_chunks() -> None:
    data = np.array([1.5], np.float32).tobytes()
    reader = VectorReader(layout_of(1), PLAIN["fp32"], Reason.TOO_LARGE)
    reader.write(memoryview(data[:1]))
    reader.write(memoryview(data[1:]))
    assert reader.out.tolist() == [1.5]
