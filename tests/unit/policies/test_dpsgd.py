from __future__ import annotations

from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.policies import configure
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.steps import Average, Gather, Record, Report, Send
from pfl_node.types import PeerId
from tests.drive_policy import ME, A, B, C, D, Hand, core_of, make, model, offer


@pytest.fixture
def star(tmp_path: Path) -> str:
    """Me in the middle of four; b and c are beside each other too."""
    path = tmp_path / "star.txt"
    path.write_text("# a star\nme a\nme b\nme c\nme d\nb c\n")
    return str(path)


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
@pytest.mark.parametrize("graph", ["ring", "regular"])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId], graph: str) -> None:
    policy, hand = make(Dpsgd, rounds=2, graph=graph), Hand(peers)
    hand.answers[Gather] = lambda s: tuple(offer(p, 1 + s.round, round=s.round) for p in s.peers)
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx(2)
    assert [set(s.to) for s in hand.all(Send)] == [set(peers)] * 2


def test_the_file_says_who_the_neighbours_are_and_their_weights(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=1, graph=star), Hand([A, B, C, D])
    hand.answers[Gather] = lambda s: tuple(offer(p, 11) for p in s.peers)
    hand.run(policy.main())
    assert set(hand.all(Send)[0].to) == {A, B, C, D}
    assert hand.all(Average)[0].weights == [0.2] * 4
    assert core_of(policy.model) == pytest.approx(0.2 * 1 + 0.8 * 11)


def test_a_node_at_the_rim_gives_the_hub_the_weight_of_the_hubs_degree(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=1, graph=star, me=B), Hand([A, C, D, ME])
    hand.answers[Gather] = lambda s: tuple(offer(p, 0) for p in s.peers)
    hand.run(policy.main())
    assert hand.all(Gather)[0].peers == [C, ME]
    assert hand.all(Average)[0].weights == [pytest.approx(1 / 3), 0.2]


def test_a_neighbour_whose_model_did_not_come_gives_its_weight_to_mine(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=1, graph=star), Hand([A, B, C, D])
    hand.answers[Gather] = lambda s: (offer(B, 11),)
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx(0.8 * 1 + 0.2 * 11)


def test_who_is_gone_is_not_sent_to_and_keeps_its_share_in_the_degrees(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=1, graph=star), Hand([A, C])
    hand.answers[Gather] = lambda s: tuple(offer(p, 11) for p in s.peers)
    hand.run(policy.main())
    assert set(hand.all(Send)[0].to) == {A, C}
    assert hand.all(Average)[0].weights == [0.2, 0.2]


def test_one_that_dies_keeps_its_place_in_a_graph_of_places(tmp_path: Path) -> None:
    (tmp_path / "ring.txt").write_text("0 1\n1 2\n2 3\n3 0\n")
    policy, hand = make(Dpsgd, rounds=2, graph=str(tmp_path / "ring.txt"), me=D), Hand([A, B, C])
    hand.answers[Report] = lambda s: setattr(hand, "peers", (B, C))
    hand.run(policy.main())
    assert [s.peers for s in hand.all(Gather)] == [[A, C], [C]]


def test_a_restart_remembers_who_was_there(tmp_path: Path) -> None:
    before = make(Dpsgd, rounds=2)
    Hand([A, B]).run(before.main())
    after = make(Dpsgd, rounds=2)
    after.restore(before.snapshot())
    assert after.met == {ME, A, B}


def test_a_drawn_ring_closes_around_one_that_dies() -> None:
    policy, hand = make(Dpsgd, rounds=2, graph="ring", degree=9), Hand([A, B, C, D])
    hand.answers[Report] = lambda s: setattr(hand, "peers", tuple(hand.all(Send)[0].to))
    hand.run(policy.main())
    first, second = (set(s.to) for s in hand.all(Send))
    assert len(first) == 2
    assert first == second


def test_a_node_that_the_file_leaves_out_trains_alone_and_says_so(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=2, graph=star, me=PeerId("z")), Hand([A, ME])
    hand.run(policy.main())
    assert policy.model == model(2)
    assert [s.event for s in hand.all(Record)] == ["no_neighbours"] * 2


def test_alone_in_the_swarm_there_is_nothing_to_say(star: str) -> None:
    hand = Hand()
    hand.run(make(Dpsgd, rounds=1, graph=star).main())
    assert hand.all(Record) == []


def test_the_all_reduce_is_a_plain_mean_over_everybody(star: str) -> None:
    for graph in ("ring", "regular", star):
        policy, hand = make(Dpsgd, rounds=1, graph=graph, all_reduce=True), Hand([A, B, C, D])
        hand.answers[Gather] = lambda s: tuple(offer(p, 6) for p in s.peers if s.round == 1)
        hand.run(policy.main())
        assert core_of(policy.model) == pytest.approx((1 + 4 * 6) / 5)


def test_the_file_is_read_when_the_knobs_are_checked_and_never_again(star: str) -> None:
    policy, hand = make(Dpsgd, rounds=1, graph=star), Hand([A, B])
    Path(star).unlink()
    hand.run(policy.main())
    assert hand.all(Send)[0].to == [A, B]


def test_a_mistake_in_the_file_is_one_line_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n1\n")
    with pytest.raises(ConfigError) as error:
        configure(Dpsgd, {"graph": str(path)})
    assert (
        str(error.value) == f"graph file {str(path)!r}, line 2: '1' is not an edge; write two nodes, such as 0 1"
    )


@pytest.mark.parametrize(
    ("graph", "hint"), [("rign", "did you mean 'ring'?"), ("no/such.txt", "known: regular, ring")]
)
def test_a_graph_that_is_neither_drawn_nor_a_file_is_one_line(graph: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure(Dpsgd, {"graph": graph})
    assert str(error.value) == f"policy (Dpsgd): graph = {graph!r} is not a file; {hint}"
