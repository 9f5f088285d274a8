"""`wire.compress`: which numbers are sent, that every number is sent in time, and what is remembered."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pfl_node.errors import ConfigError
from pfl_node.model import Entry, Layout, Model, PartialModel
from pfl_node.policies.base import Policy
from pfl_node.predictions import layout_for
from pfl_node.protocol.compression import IN_TURN, Compressor, largest, prime
from pfl_node.protocol.rate_limit import NAMES
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.types import Part, PeerId

ANN, BOB, EVE, DAN = PeerId("ann"), PeerId("bob"), PeerId("eve"), PeerId("dan")
N = 1000
LAYOUT = Layout((Entry("core", (900,)),), (Entry("head", (100,)),))


def model(seed: int = 0) -> Model:
    return Model(LAYOUT, np.random.default_rng(seed).standard_normal(N, dtype=np.float32))


def partial(compressor: Compressor, of: Model, to: PeerId = BOB, round: int | None = 0) -> PartialModel:
    found = compressor.compressed(of, to, round)
    assert isinstance(found, PartialModel)
    return found


def changed(of: Model, places: range, by: float) -> Model:
    vector = of.vector.copy()
    vector[places] += np.float32(by)
    return Model(LAYOUT, vector)


def test_nothing_is_omitted_by_default_or_of_predictions() -> None:
    assert Settings().wire.compress == "none"
    whole = model()
    assert Compressor("none", ANN).compressed(whole, BOB, 0) is whole
    said = Model(layout := layout_for(3, 2, "x"), np.zeros(layout.size, np.float32))
    for how in ("top:0.2", "fragments:4"):
        assert Compressor(how, ANN).compressed(said, BOB, 0) is said
    own = whole.sparse([1, 2])
    assert Compressor("top:0.2", ANN).compressed(own, BOB, 0) is own


@pytest.mark.parametrize(
    "text", ["top", "top:0", "top:1.1", "top:x", "fragments:0", "fragments:4/5", "gzip", "top:nan"]
)
def test_an_unknown_compression_is_a_one_line_error(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a compression: give"):
        Settings.model_validate({"wire": {"compress": text}})
    with pytest.raises(ConfigError, match=r"for 'wire\.compress' in --set: must be none, top:0\.2, fragments:16"):
        load_settings(sets=[f"wire.compress={text}"])


def test_top_sends_what_has_changed_most_since_it_was_sent() -> None:
    compressor = Compressor("top:0.1", ANN)
    compressor.begin(start := model())
    first = partial(compressor, one := changed(start, range(500, 580), 1.0))
    assert (first.values.size, first.same) == (100, True)
    assert set(range(500, 580)) <= set(first.indices.tolist())
    second = partial(compressor, changed(one, range(300, 380), 0.5))  # the first changes are known by now
    assert set(range(300, 380)) <= set(second.indices.tolist())
    assert not set(range(520, 580)) & set(second.indices.tolist())


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), min_size=1), st.data())
def test_the_largest_numbers_are_chosen_and_none_twice(given: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(given)))
    places = largest(np.array(given, np.float32), count).tolist()
    assert places == sorted(set(places))
    assert sorted(given[i] for i in places) == sorted(given)[-count:]


def test_to_choose_the_numbers_takes_little_more_than_two_copies_of_the_model() -> None:
    layout = Layout((Entry("core", (n := 1 << 18,)),), ())
    chance, compressor = np.random.default_rng(0), Compressor("top:0.2", ANN)
    compressor.begin(Model(layout, chance.standard_normal(n, dtype=np.float32)))
    large = Model(layout, chance.standard_normal(n, dtype=np.float32))
    tracemalloc.start()
    compressor.compressed(large, BOB, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.75 * large.nbytes


def test_all_peers_get_the_same_numbers_of_the_same_model() -> None:
    compressor = Compressor("top:0.1", ANN)
    compressor.begin(model())
    one = model(1)
    assert partial(compressor, one, BOB) is partial(compressor, one, EVE)
    assert partial(compressor, one.core) == partial(compressor, one.core, EVE)  # a part is a new object each time


def test_every_number_of_a_model_that_does_not_change_is_sent_in_time() -> None:
    """So that a peer that missed any messages has the whole model again after so many."""
    compressor, seen = Compressor("top:0.1", ANN), set[int]()
    compressor.begin(start := model())
    for _ in range(-(-N // (N // 10 // IN_TURN))):
        seen |= set(partial(compressor, Model(LAYOUT, start.vector.copy())).indices.tolist())
    assert len(seen) == N


@pytest.mark.parametrize("fetched", [False, True])
def test_a_peer_that_gets_the_same_model_again_gets_the_rest_of_it(fetched: bool) -> None:
    """As from a node that is done, or that pushes more often than it trains."""
    compressor, final, known = Compressor("top:0.1", ANN), model(1), set[int]()
    compressor.begin(model())
    for _ in range(12):
        sent = compressor.compressed(final, BOB, 0, fetched=fetched)
        assert isinstance(sent, PartialModel)
        known |= set(sent.indices.tolist())
        assert compressor.compressed(final, EVE, 0, fetched=fetched) == sent
    assert len(known) == N


@pytest.mark.parametrize("repeats", [1, 3, 30])
def test_a_peer_that_fetches_again_changes_nothing_for_the_others(repeats: int) -> None:
    """BOB and EVE fetch each model once; DAN fetches it `repeats` times between them, or never. A repeat that
    counted as sent would leave nothing that has changed since, so that the others got only what is in turn."""

    def fetched(*order: PeerId) -> list[tuple[PeerId, Model]]:
        compressor, chance, now = Compressor("top:0.1", ANN), np.random.default_rng(0), model()
        compressor.begin(now)
        got = []
        for t in range(20):
            now = Model(LAYOUT, now.vector + chance.standard_normal(N, dtype=np.float32))
            got += [(p, compressor.compressed(now, p, t, fetched=True)) for p in order]
        return [(p, m) for p, m in got if p != DAN]

    alone = fetched(BOB, EVE)
    assert fetched(*[DAN] * repeats, BOB, *[DAN] * repeats, EVE) == alone
    assert fetched(BOB, EVE, *[DAN] * repeats) == alone


def test_a_peer_that_fetches_again_and_one_that_fetches_once_have_equally_good_copies() -> None:
    compressor, chance, now = Compressor("top:0.2", ANN), np.random.default_rng(0), model()
    compressor.begin(now)
    slow, errors = now, []
    for t in range(60):
        now = Model(LAYOUT, now.vector + chance.standard_normal(N, dtype=np.float32))
        for _ in range(8):
            compressor.compressed(now, EVE, t, fetched=True)
        slow = compressor.compressed(now, BOB, t, fetched=True).over(slow)
        errors.append(float(np.square(slow.vector - now.vector).mean()))
    assert np.sqrt(np.mean(errors[20:])) < 1  # of a number that changes by 1 each time; 4 if repeats counted


def test_several_peers_that_fetch_again_each_get_all_of_the_model_and_none_of_it_twice() -> None:
    compressor, final = Compressor("top:0.3", ANN), model(1)
    compressor.begin(model())
    got: dict[PeerId, list[int]] = {BOB: [], EVE: [], DAN: []}
    for peer in (BOB, BOB, EVE, DAN, BOB, EVE, EVE, BOB, DAN, EVE, DAN, DAN):
        sent = compressor.compressed(final, peer, 0, fetched=True)
        assert isinstance(sent, PartialModel)
        assert sent.values.tolist() == final.vector[sent.indices].tolist()
        got[peer] += sent.indices.tolist()
    assert all(sorted(places) == list(range(N)) for places in got.values())


def test_repeated_fetches_are_remembered_as_one_number_for_each_peer() -> None:
    compressor, final = Compressor("top:0.1", ANN), model(1)
    for peer in (PeerId(f"p{i}") for i in range(NAMES + 100)):
        for _ in range(2):
            compressor.compressed(final, peer, 0, fetched=True)
    state = compressor.dump()
    assert (list(state["sent"]), list(state["last"])) == (["fetched model"], ["fetched model"])
    assert len(state["last"]["fetched model"][2]) <= NAMES


def test_a_fetch_that_broke_off_continues_with_the_same_numbers() -> None:
    compressor, final = Compressor("top:0.1", ANN), model(1)
    for _ in range(12):
        fetched = compressor.compressed(final, BOB, 0, fetched=True)
        assert compressor.compressed(final, BOB, 0, fetched=True, resumes=True) == fetched


def test_the_next_segment_of_a_simulation_continues_repeated_fetches() -> None:
    whole, resumed, final = Compressor("top:0.1", ANN), Compressor("top:0.1", ANN), model(1)
    for _ in range(3):
        whole.compressed(final, BOB, 0, fetched=True)
    resumed.load(whole.dump())
    for peer in (BOB, EVE):
        assert resumed.compressed(final, peer, 0, fetched=True) == whole.compressed(final, peer, 0, fetched=True)


EVEN = Layout((Entry("core", (800,)),), (Entry("head", (800,)),))
TURNS = prime(80)  # of each part and of the model


def even() -> Model:
    return Model(EVEN, np.random.default_rng(0).standard_normal(EVEN.size, dtype=np.float32))


def again(of: Model) -> Model:
    return Model(of.layout, of.vector.copy())


@pytest.mark.parametrize("part", ["model", "head"])
def test_a_fetch_takes_no_turn_of_the_messages(part: Part) -> None:
    """A peer that fetches in every round would otherwise keep half of the numbers from the others."""
    compressor, seen = Compressor("top:0.1", ANN), set[int]()
    compressor.begin(start := even())
    for _ in range(TURNS):
        seen |= set(partial(compressor, again(start)).indices.tolist())
        compressor.compressed(again(start).of(part), EVE, 0, fetched=True)
    assert len(seen) == EVEN.size


def test_the_parts_of_a_model_take_turns_of_their_own() -> None:
    compressor, seen = Compressor("top:0.1", ANN), set[int]()
    compressor.begin(start := even())
    for _ in range(TURNS):
        seen |= set(partial(compressor, again(start.core)).indices.tolist())
        partial(compressor, again(start.head))
    assert len(seen) == 800


@pytest.mark.parametrize("peers", [2, 3, 4, 8, 10])
@pytest.mark.parametrize("fetched", [False, True])
def test_each_of_several_peers_that_get_a_message_in_turn_gets_every_number(peers: int, fetched: bool) -> None:
    """As with peers that fetch alternately. All have one memory of what was sent."""
    compressor, seen = Compressor("top:0.1", ANN), [set[int]() for _ in range(peers)]
    compressor.begin(even())
    compressor.compressed(trained := Model(EVEN, even().vector + 1), EVE, 0, fetched=fetched)  # only EVE gets this
    for _ in range(TURNS):
        for peer, places in enumerate(seen):
            sent = compressor.compressed(again(trained), PeerId(f"p{peer}"), 0, fetched=fetched)
            assert isinstance(sent, PartialModel)
            places |= set(sent.indices.tolist())
    assert {len(places) for places in seen} == {EVEN.size}


@pytest.mark.parametrize("k", [2, 3])
def test_each_of_several_models_that_are_sent_in_turn_is_sent_completely(k: int) -> None:
    """As by a policy that sends k models with different tags in every round; they have one memory too."""
    compressor, seen = Compressor("top:0.1", ANN), [set[int]() for _ in range(k)]
    compressor.begin(start := even())
    for _ in range(TURNS):
        for i, places in enumerate(seen):
            places |= set(partial(compressor, Model(EVEN, start.vector + np.float32(1e-3 * i))).indices.tolist())
    assert {len(places) for places in seen} == {EVEN.size}


def test_what_one_peer_fetched_is_still_sent_to_the_others() -> None:
    compressor = Compressor("top:0.1", ANN)
    compressor.begin(start := model())
    new = changed(start, range(500, 580), 1.0)
    fetched = compressor.compressed(new, EVE, 0, fetched=True)
    assert isinstance(fetched, PartialModel)
    assert set(range(500, 580)) <= set(fetched.indices.tolist())
    pushed = partial(compressor, changed(new, range(20, 30), 0.1))
    assert set(range(500, 580)) <= set(pushed.indices.tolist())


def test_with_a_base_only_the_difference_from_it_counts() -> None:
    compressor, base = Compressor("top:0.1", ANN), model(5)
    sent = compressor.compressed(changed(base, range(700, 780), 1.0), BOB, 0, base)
    assert isinstance(sent, PartialModel)
    assert set(range(700, 780)) <= set(sent.indices.tolist())
    assert compressor.snapshot() == {"sent": {}, "messages": {"model": 1}}


def test_a_restored_memory_sends_the_same() -> None:
    whole, restored = Compressor("top:0.1", ANN), Compressor("top:0.1", ANN)
    for one in (whole, restored):
        one.begin(model())
    for seed in (1, 2):
        partial(whole, model(seed))
    restored.restore(whole.snapshot())
    assert partial(whole, model(3)) == partial(restored, model(3))


def test_two_nodes_send_each_other_the_same_slices_and_all_of_them_in_turn() -> None:
    ann, bob = Compressor("fragments:8/2", ANN), Compressor("fragments:8/2", BOB)
    seen = set[int]()
    for t in range(4):
        there, back = partial(ann, model(), BOB, t), partial(bob, model(1), ANN, t)
        assert there.indices.tolist() == back.indices.tolist()
        assert not there.same
        assert there.values.size == N // 4
        seen |= set(there.indices.tolist())
    assert len(seen) == N
    others = {tuple(partial(ann, model(), PeerId(f"p{i}"), 0).indices[:1].tolist()) for i in range(20)}
    assert len(others) > 4


@pytest.mark.parametrize("how", ["fragments:16", "fragments:16/4", "fragments:16/6", "fragments:5/2"])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 8, 16])
def test_two_nodes_that_meet_in_every_kth_round_send_each_other_all_slices(how: str, every: int) -> None:
    """As in a graph that repeats itself."""
    ann, seen = Compressor(how, ANN), set[int]()
    for t in range(0, 100 * every, every):
        seen |= set(partial(ann, model(), BOB, t).indices.tolist())
    assert len(seen) == N


def test_without_rounds_the_slices_change_with_every_message() -> None:
    ann, seen = Compressor("fragments:8", ANN), set[int]()
    for _ in range(8):
        seen |= set(partial(ann, model(), BOB, None).indices.tolist())
    assert len(seen) == N


def test_without_rounds_every_receiver_gets_all_slices_in_turn() -> None:
    ann, seen = Compressor("fragments:8/2", ANN), {BOB: set[int](), EVE: set[int]()}
    for _ in range(4):
        for peer, places in seen.items():
            places |= set(partial(ann, model(), peer, None).indices.tolist())
    assert [len(places) for places in seen.values()] == [N, N]


def test_a_partial_model_has_no_vector() -> None:
    with pytest.raises(Exception, match=r"complete it with `.over\(self.model\)`"):
        _ = model().fragment(0, of=4).vector
    assert Policy.vectors == {}
