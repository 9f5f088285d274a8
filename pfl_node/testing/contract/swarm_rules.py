"""Rules about swarms with faults. Each raises Broken, or the exception of the policy."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from pfl_node.sim.faults import Crash, Fault, Join, Loss, Partition, Restart, Slow, node_ids
from pfl_node.testing.contract.harness import HINT, IDS, ROUNDS, STOPPED, Broken, PolicyUnderTest, Ran
from pfl_node.types import PeerId

MIDDLE = IDS[len(IDS) // 2]
MISFITS = {"layout", "not_served", "not_finite", "unknown_run", "future_round", "garbage", "too_large"}


def works_in_a_swarm_of(subject: PolicyUnderTest, nodes: int) -> None:
    """Every node does every round, in order."""
    ran = subject.run(nodes)
    all_finish(ran)
    for node in ran.nodes:
        done = ran.rounds(node)
        if done != list(range(len(done))) or (len(done) < ROUNDS and not ran.of(STOPPED, node)):
            raise Broken(f"in a swarm of {nodes}, {node} reported the rounds {done} of {ROUNDS}")
    if wrong := {why: n for why, n in ran.refused.items() if why in MISFITS}:
        raise Broken(f"in a swarm of {nodes}, nodes refused messages of nodes with the same policy: {wrong}")


def a_peer_may_die(subject: PolicyUnderTest) -> None:
    ran = subject.run(faults=[Crash(subject.midway, MIDDLE)])
    check_event(ran, "crashed")
    all_finish(ran, but=[MIDDLE])


def a_peer_may_be_slow(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=[Slow(MIDDLE, 20.0)]))


def a_peer_may_never_answer(subject: PolicyUnderTest) -> None:
    """It is believed alive for a while, but no message reaches it or comes from it."""
    all_finish(subject.run(faults=[Partition(0.0, (frozenset([MIDDLE]),))]))


def nobody_may_answer(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=[Loss(1.0)]))


def a_peer_may_join_late(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=[Join(subject.midway, MIDDLE)]))


def a_peer_may_join_when_all_is_over(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=[Join(subject.end + 100.0, MIDDLE)]), late=[MIDDLE])


def a_peer_may_restart_from_its_checkpoint(subject: PolicyUnderTest) -> None:
    """Before its failure is detected, and after that."""
    for pause in (0.5, 15.0):
        ran = subject.run(faults=[Crash(subject.midway, MIDDLE), Restart(subject.midway + pause, MIDDLE)])
        check_event(ran, "restarted")
        all_finish(ran)


def a_restart_changes_nothing_for_a_node_alone(subject: PolicyUnderTest) -> None:
    """Restarting right after any checkpoint gives the same final model."""
    (node,) = node_ids(1)
    whole = subject.run(1)
    for row in whole.of("round")[:-1]:
        at = row["time"] + 1e-5
        ran = subject.run(1, [Crash(at, node), Restart(at + 5.0, node)])
        if not ran.of("restarted"):
            raise Broken(f"it did nothing after its Report of round {row['round']}")
        if ran.nodes[node].policy.model != whole.nodes[node].policy.model:
            raise Broken(f"a node that restarts after round {row['round']} ends with another model: {HINT}")


def messages_may_be_lost(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=[Loss(0.2)]))


def everything_may_go_wrong_at_once(subject: PolicyUnderTest) -> None:
    all_finish(subject.run(faults=many_faults(subject), seed=1), but=[IDS[-1]])


def the_same_seed_gives_the_same_journal(subject: PolicyUnderTest) -> None:
    one, same, other = (subject.run(faults=many_faults(subject), seed=seed).journal for seed in (5, 5, 6))
    if one != same:
        pairs = enumerate(zip(one.splitlines(), same.splitlines(), strict=False), 1)
        line = next((f"line {n}: {a.decode()} / {b.decode()}" for n, (a, b) in pairs if a != b), "at its end")
        raise Broken(f"two runs with the same seed differ, {line}")
    if one == other:
        raise Broken("two runs with different seeds are the same")


def many_faults(subject: PolicyUnderTest) -> list[Fault]:
    half = subject.midway
    return [
        Loss(0.1),
        Slow(IDS[0], 5.0, half / 2, half),
        Crash(half / 2, IDS[1]),
        Restart(half / 2 + 12.0, IDS[1]),
        Join(half, IDS[2]),
        Partition(half, (frozenset(IDS[3:5]),), half + 15.0),
        Crash(half, IDS[-1]),
    ]


def check_event(ran: Ran, event: str) -> None:
    if not ran.of(event):
        raise Broken(f"{MIDDLE} was never {event}: it finished before half of the swarm's rounds were done")


def all_finish(ran: Ran, but: Collection[PeerId] = (), late: Collection[PeerId] = ()) -> None:
    """Every node has done its last round. A node that fell behind may have skipped some; a `late` one may have
    found nothing left to do."""
    for id, node in ran.nodes.items():
        if id in but:
            continue
        if node.state != "left" or node.policy.more:
            raise Broken(f"{id} did not finish: it is {node.state} in round {node.policy.round}")
        done = ran.rounds(id)
        if not done and id not in late:
            raise Broken(f"{id} finished without a round")
        if not node.policy.model.is_finite():
            raise Broken(f"the model of {id} is not finite after its rounds {done}")
        again = [a for a, b in pairwise(done) if b <= a]
        if again and not ran.of("restarted", id):
            raise Broken(f"{id} reported its rounds in the order {done}")
