"""`el` against de Vos et al. 2023, "Epidemic Learning" (EL-Oracle and EL-Local), as described
by Trinca 2024, section 2.2. Each test cites its source."""

from __future__ import annotations

import random

from pfl_node.policies.el import El
from pfl_node.policies.topology import regular
from pfl_node.steps import Average, Gather, Report, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import ME, A, B, C, D, Hand, core_of, make, model, offer

MANY = [PeerId(f"p{i:02}") for i in range(15)]


def test_a_round_is_train_then_send_then_average_what_came() -> None:
    """2.2: "performing [...] updates [...] shared with its neighbors [...] aggregates the received models"."""
    policy, hand = make(El, rounds=1), Hand([A, B])
    hand.answers[Gather] = lambda s: (offer(A, 3, round=0), offer(B, 8, round=0))
    hand.run(policy.main())
    order = [type(s) for s in hand.asked if isinstance(s, (Train, Send, Gather, Average, Report))]
    assert order == [Train, Send, Gather, Average, Report]
    assert core_of(hand.all(Send)[0].model) == 1
    assert policy.model == model((1 + 3 + 8) / 3)


def test_new_neighbours_are_sampled_at_each_round() -> None:
    """2.2: "the communication graph dynamically evolves. New neighbors are sampled at each round"."""
    policy, hand = make(El, rounds=12), Hand(MANY)
    hand.run(policy.main())
    assert all(len(set(s.to)) == 4 for s in hand.all(Send))
    assert len({tuple(s.to) for s in hand.all(Send)}) > 6


def test_everybody_draws_the_same_graph_from_the_runs_seed_alone() -> None:
    """EL-Oracle: an s-regular graph that all nodes agree on; here derived from the seed."""
    members = sorted([ME, *MANY])
    sent = {}
    for me in members:
        policy, hand = make(El, rounds=5, me=me), Hand([p for p in members if p != me])
        policy.rng = random.Random(f"its own {me}")
        hand.run(policy.main())
        sent[me] = [tuple(s.to) for s in hand.all(Send)]
    for t in range(5):
        assert {me: to[t] for me, to in sent.items()} == regular(tuple(members), 4, 0, t)


def test_what_is_gathered_is_what_the_neighbours_sent_for_this_round() -> None:
    policy, hand = make(El, rounds=3), Hand(MANY)
    hand.run(policy.main())
    for send, gather in zip(hand.all(Send), hand.all(Gather), strict=True):
        assert (send.to, send.round) == (gather.peers, gather.round)
    assert [s.round for s in hand.all(Gather)] == [0, 1, 2]


def test_the_all_reduce_is_one_more_exchange_with_everybody() -> None:
    """Trinca 2024, 4.1.3: "a final all-reduce step, where all nodes share their models"."""
    policy, hand = make(El, rounds=1, all_reduce=True, degree=1), Hand([A, B, C, D])
    hand.answers[Gather] = lambda s: tuple(offer(p, 6, round=s.round) for p in s.peers if s.round == 1)
    hand.run(policy.main())
    last = hand.all(Send)[-1]
    assert (set(last.to), last.round) == ({A, B, C, D}, 1)
    assert policy.model == model((1 + 4 * 6) / 5)
    assert [s.round for s in hand.all(Report)] == [0, 1]
    assert len(hand.all(Train)) == 1


def test_with_own_choices_each_node_sends_to_s_others_that_it_picks_alone() -> None:
    """EL-Local: every node samples its s recipients by itself, uniformly and independently, anew each round."""
    policy, hand = make(El, rounds=12, graph="own", degree=3), Hand(MANY)
    hand.run(policy.main())
    assert all(len(set(s.to)) == 3 and ME not in s.to for s in hand.all(Send))
    assert len({tuple(s.to) for s in hand.all(Send)}) > 6
    assert any(set(s.to) != set(g.peers) for s, g in zip(hand.all(Send), hand.all(Gather), strict=True))


def test_with_own_choices_the_number_of_models_that_come_varies_and_all_of_them_are_averaged() -> None:
    """EL-Local: a node receives from all that picked it; Algorithm 1 divides by their number plus one."""
    policy, hand = make(El, rounds=30, graph="own", degree=2), Hand(MANY)
    hand.answers[Gather] = lambda s: tuple(offer(p, 6, round=s.round) for p in s.peers)
    hand.run(policy.main())
    came = [len(s.others) for s in hand.all(Average)]
    assert min(came) < 2 < max(came)
    assert 1.2 < sum(came) / len(came) < 2.8


def test_with_own_choices_everybody_waits_for_exactly_those_who_send_to_it() -> None:
    """Each node can compute which peers picked it, and waits for these only."""
    members = sorted([ME, *MANY])
    sent, awaited = set(), set()
    for me in members:
        policy, hand = make(El, rounds=4, me=me, graph="own"), Hand([p for p in members if p != me])
        hand.run(policy.main())
        sent |= {(me, p, s.round) for s in hand.all(Send) for p in s.to}
        awaited |= {(p, me, s.round) for s in hand.all(Gather) for p in s.peers}
    assert sent == awaited
