"""What peers may fetch: what was told last, as far as policy and operator let it out."""

from __future__ import annotations

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.protocol.published import PublishedModels
from pfl_node.settings import ServeSettings
from pfl_node.steps import Publish
from pfl_node.types import Part, PeerId
from tests.toy import ToyLearner, constant

ALL: tuple[Part, ...] = ("model", "core", "head", "predictions")


def window(serves: tuple[Part, ...] = ALL, **gates: bool) -> PublishedModels:
    made = PublishedModels(PeerId("me"), ServeSettings(**gates), serves)
    made.show(Publish(constant(2.0), 3, tag=1, notes={"a": 0.5}), samples=10)
    made.show(Publish(ToyLearner().predict(constant(2.0), seed=0), 4), samples=10)
    return made


def refused(made: PublishedModels, part: Part) -> Reason:
    with pytest.raises(Refused) as error:
        made.give(part)
    return error.value.reason


def test_a_part_of_what_was_told_last_is_given_with_its_tag_and_notes() -> None:
    offer = window().give("head")
    assert (offer.model, offer.round, offer.tag, offer.samples) == (constant(2.0).head, 3, 1, 10)
    assert dict(offer.notes) == {"a": 0.5}
    assert window().give("predictions").round == 4


def test_what_the_policy_keeps_to_itself_is_not_given_whatever_the_operator_says() -> None:
    made = window(("core",))
    assert made.give("core").model == constant(2.0).core
    for part in ("model", "head", "predictions"):
        assert refused(made, part) is Reason.NOT_SERVED


def test_what_the_operator_does_not_serve_is_not_given() -> None:
    made = window(head=False, predictions=False)
    assert made.give("model").round == 3
    assert (refused(made, "head"), refused(made, "predictions")) == (Reason.NOT_SERVED, Reason.NOT_SERVED)
    assert refused(window(model=False), "core") is Reason.NOT_SERVED


def test_before_anything_was_told_there_is_nothing_to_give() -> None:
    assert refused(PublishedModels(PeerId("me"), ServeSettings(), ALL), "model") is Reason.NOT_READY


def test_a_part_alone_cannot_be_published() -> None:
    with pytest.raises(ValueError, match="a head alone cannot be published"):
        Publish(constant(1.0).head, 0)
