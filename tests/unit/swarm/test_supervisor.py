"""What the parent makes of what its workers say."""

from __future__ import annotations

from typing import Any

from pfl_node.swarm.supervisor import Swarm
from tests.unit.swarm.made_swarms import swarm


def hear(made: Swarm, what: str, index: int = 0, **data: Any) -> dict[str, Any]:
    return made._receive({"event": "node", "index": index, "what": what, "data": data})


def test_it_is_ready_when_every_node_has_started() -> None:
    made = swarm(2)
    hear(made, "started", 0, node="a", cluster=1)
    assert (made.started, made.ready.is_set()) == (1, False)
    hear(made, "started", 1, node="b", cluster=None)
    assert made.ready.is_set()
    assert [(s.node, s.cluster) for s in made.slots] == [("a", 1), ("b", None)]


def test_rounds_are_counted_without_the_final_exchange() -> None:
    made = swarm(2, rounds=3)
    hear(made, "round", 0, round=1)
    hear(made, "round", 1, round=3)  # the fourth
    assert (made.rounds_done, made.rounds_total) == (2 + 3, 6)
    endless = swarm(2, rounds=None)
    hear(endless, "round", 0, round=9)
    assert (endless.rounds_done, endless.rounds_total) == (10, None)


def test_the_last_of_each_record_is_kept() -> None:
    made = swarm(1)
    hear(made, "neighbours", ids=["a"])
    hear(made, "neighbours", ids=["b"])
    assert made.slots[0].records == {"neighbours": {"ids": ["b"]}}


def test_a_policy_may_record_under_the_names_of_the_swarm() -> None:
    made = swarm(1)
    for name in ("failed", "imported", "worked", "result", "started", "round", "node"):
        said = {"event": "node", "index": 0, "what": name, "data": {"event": "mine", "index": 7, "x": 1}}
        assert made._receive(said) == {"event": name, "index": 0, "x": 1}
    assert (made.imported, made.cpu, made.slots[0].result, made.slots[0].round) == (0, 0.0, None, 0)


def test_workers_tell_how_far_they_are() -> None:
    made = swarm(5, workers=2)
    made._receive({"event": "imported"})
    made._receive({"event": "worked", "cpu": 1.5})
    made._receive({"event": "result", "index": 4, "how": "done"})
    assert (made.imported, made.cpu, made.done) == (1, 1.5, 1)
