"""`sgp` against Assran et al. 2019, "Stochastic Gradient Push for Distributed Deep Learning", Algorithm 1. Each
test cites its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, pvariance
from typing import Any

import pytest

from pfl_node.policies.dfedpgp import DFedPgp
from pfl_node.policies.sgp import LEAST, Sgp
from pfl_node.policies.topology import exponential
from pfl_node.protocol.compression import Compressor
from pfl_node.steps import Average, Gather, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, Hand, Run, core_of, make, model, offer

NODES = [PeerId(f"n{i:02}") for i in range(9)]
Table = dict[tuple[PeerId, PeerId, int | None], Offer]
Loses = Callable[[PeerId, PeerId, int], bool]


def pushed(sender: PeerId, value: float, w: float) -> Offer:
    return replace(offer(sender, value, round=0), notes={"w": w})


def played(*offers: Offer, took: tuple[PeerId, ...] = (A,), **options: Any) -> tuple[Sgp, Hand]:
    policy, hand = make(Sgp, rounds=1, **options), Hand([A, B])
    hand.answers[Send] = lambda _: took
    hand.answers[Gather] = lambda _: offers
    hand.run(policy.main())
    return policy, hand


def test_a_round_is_train_then_push_then_the_sums_of_what_arrived() -> None:
    """Lines 3 to 8: the gradient at z, the push, the sums of x and w, the division."""
    _, hand = played()
    order = [type(s) for s in hand.asked if isinstance(s, (Train, Send, Gather, Average, Report))]
    assert order == [Train, Send, Gather, Average, Report]


def test_each_recipient_gets_the_same_share_and_the_sender_keeps_one() -> None:
    """Section 2: the columns of P sum to 1; appendix C: equal weights for all recipients and the node itself."""
    _, hand = played(degree=2, graph="random", took=(A, B))
    (send,) = hand.all(Send)
    assert set(send.to) == {A, B}
    assert send.notes["w"] == pytest.approx(1 / 3)
    assert hand.all(Average)[0].own == pytest.approx(1 / 3)


def test_z_is_the_sum_of_x_divided_by_the_sum_of_w() -> None:
    """Lines 6 to 8: x = sum p x, w = sum p w, z = x / w."""
    policy, _ = played(pushed(A, 5, w=0.25), pushed(B, 9, w=1.0))
    x, w = 0.5 * 1 + 0.25 * 5 + 1.0 * 9, 0.5 + 0.25 + 1.0  # my z is 1 after training, my w 1, my share a half
    assert core_of(policy.model) == pytest.approx(x / w)
    assert policy.w == pytest.approx(w)


def test_the_weight_survives_a_restart() -> None:
    """Algorithm 1 keeps w from iteration to iteration."""
    policy, _ = played(pushed(A, 5, w=0.25))
    again = make(Sgp)
    again.restore(policy.snapshot())
    assert again.w == policy.w == 0.75


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 16])
def test_in_the_exponential_graph_everybody_sends_and_receives_as_much(n: int) -> None:
    """Appendix A: peers 2^0, 2^1, ..., 2^floor(log2(n - 1)) hops away, in turn, one in each iteration."""
    nodes, hops = NODES[:n] if n <= 9 else [PeerId(f"n{i:02}") for i in range(n)], set[int]()
    for t in range(8):
        near = {i: exponential(i, [p for p in nodes if p != i], degree=1, round=t) for i in nodes}
        for i, (to, of) in near.items():
            assert len(to) == len(of) == min(n - 1, 1)
            assert all(i in near[j][1] for j in to)
            hops.update((nodes.index(j) - nodes.index(i)) % n for j in to)
    assert hops == {1 << k for k in range((n - 1).bit_length())}


def swarm(
    rounds: int, loses: Loses = lambda *_: False, *, compress: str = "none", cls: type[Sgp] = Sgp, **options: Any
) -> tuple[list[float], list[float]]:
    """All nodes together, without training: node i starts at i. Returns their z and w."""
    sent: Table = {}
    policies = {me: make(cls, rounds=rounds, me=me, start=i, **options) for i, me in enumerate(NODES)}
    runs = [Run(policy.main(), beside(me, sent, loses, compress)) for me, policy in policies.items()]
    for _ in range(rounds):
        for run in runs:
            run.to(Gather)
        for run in runs:
            run.past(Report)
    return [core_of(p.model) for p in policies.values()], [p.w for p in policies.values()]


def beside(me: PeerId, sent: Table, loses: Loses, compress: str) -> Hand:
    compressor = Compressor(compress, me)

    def send(step: Send) -> tuple[PeerId, ...]:
        took = tuple(p for p in step.to if not loses(me, p, step.round or 0))
        for p in took:
            part = step.model if step.whole else compressor.compressed(step.model, p, step.round)
            sent[me, p, step.round] = replace(offer(me, part), notes=step.notes)
        return took

    hand = Hand([p for p in NODES if p != me], {Train: lambda s: s.model, Send: send})
    hand.answers[Gather] = lambda s: tuple(o for (_, to, t), o in sent.items() if (to, t) == (me, s.round))
    return hand


@pytest.mark.parametrize("options", [{}, {"graph": "random", "degree": 1}, {"graph": "random", "degree": 3}])
def test_all_come_to_the_mean_although_links_have_one_direction(options: dict[str, Any]) -> None:
    """Section 2, push-sum: x / w converges to the mean of all x_0, and the sum of w stays n."""
    z, w = swarm(40, **options)
    assert sum(w) == pytest.approx(len(NODES))
    assert fmean(zi * wi for zi, wi in zip(z, w, strict=True)) == pytest.approx(4.0, abs=1e-4)
    assert all(zi == pytest.approx(4.0, abs=0.05) for zi in z)


@pytest.mark.parametrize("compress", ["top:0.4", "fragments:2"])
@pytest.mark.parametrize("cls", [Sgp, DFedPgp])
def test_all_come_to_the_mean_of_every_number_under_any_compression(cls: type[Sgp], compress: str) -> None:
    """Section 2: the sum of x stays the same if each message has the same share of every number as of w."""
    options: dict[str, Any] = {"cls": cls, "graph": "random", "degree": 1}
    assert swarm(40, compress=compress, **options) == swarm(40, **options)


@pytest.mark.parametrize("graph", ["exponential", "random"])
def test_a_lost_message_takes_nothing_with_it(graph: str) -> None:
    """A sender keeps the share that nobody accepted: sum w and sum x stay, so the limit is still the mean."""
    z, w = swarm(120, lambda a, b, t: (NODES.index(a) * 7 + NODES.index(b) * 3 + t) % 3 == 0, graph=graph)
    assert sum(w) == pytest.approx(len(NODES))
    assert pvariance(z) < 1e-3
    assert fmean(z) == pytest.approx(4.0, abs=0.05)


def test_a_weight_that_arrives_late_is_added_when_it_arrives() -> None:
    """Section 3, overlap: messages may be outdated, if delays are bounded; Algorithm 2, 19-24: all are added."""
    assert Sgp.late
    policy, _ = played(replace(pushed(A, 5, w=0.5), round=-1), pushed(A, 7, w=0.5))
    assert policy.w == pytest.approx(1.5)


def test_the_share_of_a_node_that_was_not_expected_to_send_is_added_too() -> None:
    """With another view of the membership a node may choose me; its share has left it, so it must not be lost."""
    assert played()[1].all(Gather)[0].others


def test_the_weight_of_a_node_that_only_sends_never_becomes_zero() -> None:
    """Line 8 divides by it."""
    policy, hand = make(Sgp, rounds=3), Hand([A, B])
    policy.w = LEAST
    hand.run(policy.main())
    assert policy.w == LEAST


@pytest.mark.parametrize("w", [-1.0, 0.0, float("nan"), float("inf")])
def test_what_is_no_weight_counts_as_none(w: float) -> None:
    policy, _ = played(pushed(A, 5, w=w), offer(B, 9))
    assert (core_of(policy.model), policy.w) == (1, 0.5)


def test_a_peer_cannot_claim_a_weight_far_above_the_others() -> None:
    policy, hand = make(Sgp, rounds=1), Hand([A, B, C])
    policy.claim = 10.0
    hand.answers[Gather] = lambda _: (pushed(A, 5, w=1e6), pushed(B, 5, w=0.5))
    hand.run(policy.main())
    assert policy.w <= 0.5 + 0.5 + 10 * 0.5


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Sgp, rounds=3), Hand(peers)
    hand.run(policy.main())
    assert policy.model == model(3)
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
