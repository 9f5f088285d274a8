"""From what the workers said to figures."""

from __future__ import annotations

from pfl_node.swarm.supervisor import NodeSlot, Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome
from tests.unit.swarm.made_swarms import after, outcome, record, started, swarm


def result(slot: NodeSlot, **told: object) -> None:
    slot.result = {
        "how": "done",
        "measured": {"test": {"accuracy": 0.9, "loss": 0.3}},
        "told": told,
        "models_sent": {"id1": 2, "id2": 3},
        "models_received": {"id1": 4},
        "bytes_sent": 500,
        "bytes_received": 400,
        "refused": {"flood": slot.index},
        "failed_calls": {"send gone": 1},
    }


def made() -> Swarm:
    return after(started(swarm(3)), 10)


def test_a_node_is_told_by_its_last_words() -> None:
    ended = made()
    for slot in ended.slots:
        result(slot, neighbours={"ids": ["id0", "gone"]}, round={"head": 1})
    ended.cpu = 4.5
    o = SwarmOutcome.of(ended, seconds=9.0)
    node = o.nodes[2]
    assert (node.id, node.cluster, node.state, node.rounds) == ("node-002", 1, "done", 10)
    assert (node.accuracy, node.loss, node.head) == (0.9, 0.3, 1)
    assert (node.models_sent, node.models_received, node.bytes_sent, node.bytes_received) == (5, 4, 500, 400)
    assert node.neighbours == ("node-000", "gone")
    assert (o.policy, o.task, o.rounds, o.wall_seconds, o.cpu_seconds) == ("pens", "digits", 10, 9.0, 4.5)
    assert o.refused == {"flood": 3}
    assert o.failed_calls == {"send gone": 3}
    assert o.unfinished == 0


def test_a_node_without_last_words_is_told_by_its_last_round() -> None:
    lost = after(made(), 4, test_accuracy=0.7, test_loss=1.0)
    o = SwarmOutcome.of(lost, seconds=1.0)
    assert [(n.state, n.rounds, n.accuracy, n.loss) for n in o.nodes] == [("lost", 4, 0.7, 1.0)] * 3
    assert o.unfinished == 3


def test_a_node_that_never_began_has_no_figures() -> None:
    o = SwarmOutcome.of(swarm(1), seconds=0.0)
    assert (o.accuracy, o.nodes[0].neighbours, o.nodes[0].rounds) == (None, None, 0)


def test_the_rounds_of_the_slowest_and_the_fastest() -> None:
    assert outcome(record(0, rounds=3), record(1, rounds=11)).rounds_done == (3, 10)
    assert outcome(record(0, rounds=3), record(1, rounds=11), rounds=None).rounds_done == (3, 11)
