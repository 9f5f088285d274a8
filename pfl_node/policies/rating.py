"""Rate peers by loss or accuracy, of their models on my data or of mine on theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Literal, TypeVar

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import PolicyConfig
from pfl_node.steps import Ask, Fetch, Score
from pfl_node.types import Eval, Offer, PeerId

T = TypeVar("T")
Metric = Literal["loss", "accuracy"]
Scored = Literal["mine", "theirs"]

METRIC = "how a peer is rated: loss (the lowest is best) or accuracy (the highest), or the best metric of the task"
SCORED = "which training data to score on: mine (their models) or theirs (my model)"


class Rating(PolicyConfig):
    """The knobs of policies that rate peers. These defaults are the thesis'; the paper uses loss and mine."""

    metric: Metric = Field("accuracy", description=METRIC)
    scored: Scored = Field("theirs", description=SCORED)
    score_samples: int | None = Field(None, ge=1, description="own samples to score a model on; none: all")


async def rate(cfg: Rating, model: Model, offers: Sequence[Offer]) -> list[tuple[Offer, Eval]]:
    """Rate received models. A peer that does not answer is left out."""
    if not offers:
        return []
    if cfg.scored == "mine":
        # all at once, so that a random sample is the same for all
        scores = await Score([o.model.over(model) for o in offers], samples=cfg.score_samples)
        return list(zip(offers, scores, strict=True))
    answers = await Ask(list(dict.fromkeys(o.sender for o in offers)), model)
    return [(o, answers[o.sender]) for o in offers if o.sender in answers]


async def rate_peers(
    cfg: Rating, model: Model, peers: Sequence[PeerId]
) -> tuple[dict[PeerId, Eval], dict[PeerId, Offer]]:
    """Rate peers; also returns the models that were fetched for that."""
    if cfg.scored == "theirs":
        return await Ask(peers, model), {}
    offers = await Fetch(peers)
    scores = await rate(cfg, model, offers)
    return {o.sender: score for o, score in scores}, {o.sender: o for o in offers}


def best_first(rated: Iterable[tuple[T, Eval]], metric: Metric) -> list[T]:
    """NaN comes last; ties keep their order. Instead of the accuracy, the task's best metric is used if every peer
    reported it, and the loss if labels are not classes."""
    pairs = list(rated)
    scored = all(score.score is not None for _, score in pairs)
    classless = all(isnan(score.accuracy) for _, score in pairs)

    def key(pair: tuple[T, Eval]) -> tuple[bool, float]:
        score = pair[1]
        if metric == "loss" or (classless and not scored):
            value = score.loss
        else:
            value = -(score.quality if scored else score.accuracy)
        return isnan(value), 0.0 if isnan(value) else value

    return [item for item, _ in sorted(pairs, key=key)]
