"""Building the learner of a place."""

from __future__ import annotations

import gc

from pfl_node.learning.build import learner_at
from pfl_node.learning.task import Place
from pfl_node.settings import Settings


def test_a_learner_leaves_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    learner_at(Settings(device="cpu"), Place(index=0, nodes=4, seed=0, node_id="n000"))
    assert gc.get_threshold() == before
