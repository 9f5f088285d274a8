"""What peers tell of themselves is taken as far as it has the right shape."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.ops.peer_status import PEERS, WORD, peer_status, points_of
from pfl_node.wire import peer_pb2 as pb

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
KEYS = (
    *("told", "measured", "refused", "failed_calls", "models_sent", "learns_with", "learned_from"),
    *("waiting_for", "waiting"),
)


def status(**details: Any) -> pb.Status:
    return pb.Status(name="bob", state="training", round=7, json=json.dumps(details))


def test_what_is_well_formed_is_taken() -> None:
    found = peer_status(
        status(
            samples=60,
            measured={"test": {"loss": 0.5, "accuracy": None}, "val": {"loss": 1, "accuracy": 0.25}},
            told={"round": {"head": 1}, "neighbours": {"ids": ["ann"]}},
            refused={"flood": 3},
            learns_with={"ann": 2.5},
            bytes_sent=10,
            waiting=[{"what": "models", "peers": ["ann"], "seconds_left": 3.5}, {"seconds_left": None}, 7],
        )
    )
    assert found.waiting_left == 3.5
    assert (found.doing, found.round, found.rounds, found.samples, found.head) == ("training", 7, None, 60, 1)
    assert found.measured == {"val": {"loss": 1.0, "accuracy": 0.25}, "test": {"loss": 0.5}}
    assert (found.refused, found.learns_with, found.neighbours) == ({"flood": 3}, {"ann": 2.5}, ["ann"])
    assert "learns_with" not in found.plain()


def test_what_is_not_is_left_out() -> None:
    wrong = {"flood": -1, "x": 1.5, "y": True}
    found = peer_status(status(samples="many", refused=wrong, learns_with=[1], told="hello", version=3))
    assert (found.samples, found.refused, found.learns_with, found.version) == (None, {}, {}, "")
    for text in ("", "[", "12", '"x"', "null"):
        assert peer_status(pb.Status(json=text)).measured == {}


def test_long_words_and_large_tables_are_cut() -> None:
    found = peer_status(status(refused={f"reason {n}": 1 for n in range(PEERS + 5)}, waiting_for=["x" * 1000]))
    assert len(found.refused) == PEERS
    assert len(found.waiting_for[0]) == WORD


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, anything)))
def test_whatever_is_told_becomes_json(details: dict[str, Any]) -> None:
    found = peer_status(pb.Status(uptime=float("inf"), json=json.dumps(details)))
    json.dumps(found.plain(), allow_nan=False)


def test_points_go_forward_and_are_finite() -> None:
    def point(round: int, value: float) -> pb.Point:
        return pb.Point(round=round, time=1.0, figures={"val_loss": value, "made_up": 1.0})

    history = pb.History(points=[point(3, 1.0), point(2, 1.0), point(4, float("nan")), point(5, 0.5)])
    assert [(p.round, p.figures) for p in points_of(history, after=-1)] == [
        (3, {"val_loss": 1.0}),
        (5, {"val_loss": 0.5}),
    ]
    assert [p.round for p in points_of(history, after=3)] == [5]
