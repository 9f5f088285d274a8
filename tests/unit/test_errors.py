from __future__ import annotations

import re

import pytest

from pfl_node import errors
from pfl_node.errors import ConfigError, PeerGone, PeerMisbehaved, PflError, Reason, Refused, nearest
from pfl_node.types import PeerId

TREE = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, PflError)]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", errors.__doc__ or "", flags=re.M)
    assert set(drawn) - {"Exceptions"} == {e.__name__ for e in TREE}


@pytest.mark.parametrize("kind", TREE, ids=lambda e: e.__name__)
def test_every_error_says_who_is_at_fault(kind: type[PflError]) -> None:
    assert kind.__doc__


def test_an_error_about_a_peer_names_it() -> None:
    error = PeerGone(PeerId("ab12"), "no answer in 5 s")
    assert str(error) == "ab12: no answer in 5 s"
    assert (error.peer, error.text) == ("ab12", "no answer in 5 s")
    assert str(PeerGone("", "nobody")) == "nobody"


def test_a_refusal_has_a_reason_for_the_counter() -> None:
    error = Refused(Reason.FLOOD, "slow down", "ab12")
    assert isinstance(error, PeerMisbehaved)
    assert (error.reason, f"{error.reason}", str(error)) == (Reason.FLOOD, "flood", "ab12: slow down")


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert nearest("gosip", ["pens", "gossip"]) == "did you mean 'gossip'?"
    assert nearest("zzz", ["pens", "gossip"]) == "known: gossip, pens"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("workers", "networks"),
        ("label", "table"),
        ("eval.zzz", "eval.on"),
        ("device", "every"),
        ("steps", "epochs"),
    ],
)
def test_a_name_that_is_not_similar_is_not_suggested(word: str, name: str) -> None:
    assert nearest(word, [name]) == f"known: {name}"


@pytest.mark.parametrize(
    ("word", "name"), [("batch_size", "batch"), ("optim", "optimizer"), ("TT", "T"), ("trian.lrr", "train.lr")]
)
def test_a_longer_or_shorter_form_is_suggested(word: str, name: str) -> None:
    assert nearest(word, [name, "something_else", "other.key"]) == f"did you mean {name!r}?"


def test_the_nearest_name_may_be_written_in_another_case() -> None:
    assert nearest("PENS", ["pens", "gossip"]) == "did you mean 'pens'?"
    assert nearest("t", ["m", "T"]) == "did you mean 'T'?"
    assert nearest("K", ["k", "K"]) == "did you mean 'K'?"


def test_a_users_mistake_is_not_a_peers() -> None:
    assert not issubclass(ConfigError, errors.PeerError)
